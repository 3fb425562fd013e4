"""The files of mixed.py that are not drawn from seeds: records by lines; pages, slides and cells parted by ====."""

from __future__ import annotations

TEXTS = {
    "above tables": "Kept by the office in Kendal. What is not listed here is made to order; ask before you promise.\n",
    "service/tickets.jsonl": """
A keeper in Oban says that her station sends nothing after heavy snow; the aerial had iced over and was wiped dry.
The display of a TS300 stayed black until the ribbon cable behind the hatch was pushed back in.
Wind speeds at Galway were twice too high because the logger was set to knots and the report to metres per second.
A school in Ghent cannot sign in; their licence had run out in June and was renewed free of charge.
Rain of 900 mm in an hour was reported from Lille: a child had poured a bucket of water into the funnel.
Ants had nested in the junction box at Porto and caused a short; the box now has a gland with a mesh.
The station at Turku reboots every night at two; its old firmware did not survive the nightly backup.
Readings from Graz came with dates of the year 1970 until the coin cell of the clock was replaced.
""",
    "service/incidents.jsonl": """
On 3 March the data centre in Leeds lost power for forty minutes; eleven stations buffered and nothing was lost.
On 19 May a wrong certificate kept customers out of the portal from nine until noon; reminders now come 30 days before.
On 7 July a fitter fell from a ladder in Bergen and broke his wrist; masts are now climbed by two people only.
On 22 August a lithium pack caught fire in the workshop; packs are stored in the steel cabinet since.
On 2 October an update emptied the settings of 140 loggers; they were restored from the copy of the day before.
""",
    "sales/reviews.jsonl": """
Three winters on a skerry without a single visit, and it still reports every ten minutes. Worth every cent.
The app is ugly and slow on my tablet, but the numbers agree with the airport's.
Assembly took two of us a whole day since the drawings show another mast than the one in the parcel.
I returned the small panel: from November on it does not fill the battery at our latitude.
The hotline answered within a minute and stayed on the phone until the modem worked.
Our beekeepers use the hive scale that you do not even advertise, please keep making it.
""",
    "manuals/handbook-ts200.pdf": """
TS200 weather station
Handbook for keepers, third edition
What is in the parcel: the logger, a mast in two pieces,
four guy wires and a bag of screws. Keep the parcel for
a return. The serial number is on the lid of the logger.
====
Choosing a place
Keep ten metres away from walls and twice the height of
a tree away from it. Short grass is best below the gauge.
The wind sensor belongs at the top of the mast.
Roofs are too warm: readings come out two degrees high.
====
Power
The battery lasts nine days without sun.
Turn the panel to the south and tilt it by 60 degrees.
Below minus 20 degrees use the lithium pack, as lead
batteries freeze when they are not full.
====
Care
Rinse the funnel in spring and in autumn.
Replace the drying bag when its window turns pink.
Never oil the bearings of the cup wheel: the grease in
them is made for cold. Worn bearings whistle in a breeze.
====
Sending data
The station sends every 30 minutes and keeps the last
four months on its card. The red lamp blinks twice when
a message was not acknowledged.
A card of more than 32 GB is not recognised.
====
Warranty
We repair free of charge for two years. Damage by
lightning is not covered. Write to the workshop before
you send anything, and put the serial number on the box.
""",
    "manuals/handbook-ts300.pdf": """
TS300 weather station
Handbook for keepers, first edition
What is in the parcel: the logger, a mast in three pieces,
six guy wires, a heated gauge and a torque wrench.
The serial number is on the door of the cabinet.
====
Choosing a place
Keep fifteen metres away from walls. The heated gauge
needs a firm plate of concrete, 60 by 60 centimetres.
The sonic sensor must point north by its white arrow.
====
Power
The battery lasts twenty days without sun, but only six
with the heater on. Turn the panel to the south and tilt
it by 70 degrees. Mains power needs the adapter TA-5.
====
Care
The gauge melts snow by itself. Wipe the transducers of
the sonic sensor with a soft brush, never with alcohol.
Replace the filter of the fan once a year.
====
Sending data
The station sends every five minutes by cellular network
or every hour by satellite, and keeps two years inside.
A blue lamp means that the satellite was found.
====
Warranty
We repair free of charge for five years, and lend you a
station meanwhile. Damage by lightning is covered where
the earth rod was set by a fitter.
""",
    "office/lease-kendal.pdf": """
Lease of the workshop, Mill Lane 4, Kendal
Between Fell Estates and Tarn Instruments.
The rent is due on the third working day of a month.
====
Use of the building
Machines may run from seven in the morning to eight in
the evening. Dogs are allowed in the yard only.
Nothing may be fixed to the outer walls without consent.
====
Repairs
The landlord sees to the roof, the lift and the boiler.
The tenant paints the rooms every sixth year.
Broken panes are paid for by whoever broke them.
====
End of the lease
Notice has to be given nine months before.
The deposit of 8,400 pounds is returned within sixty days
of the handover, less the cost of cleaning.
""",
    "office/fire-safety.pdf": """
Fire safety in Kendal and Kiel
Alarms are tested on the first Tuesday of each month.
Wardens wear a yellow vest.
====
When the bell rings
Leave by the nearest stair, and never take the lift.
Meet beneath the chestnut tree in the yard.
Do not go back for coats or laptops.
====
Extinguishers
Use the red ones with a black label for electrical fires.
Foam ruins circuit boards. Sand for lithium stands beside
the steel cabinet.
""",
    "talks/review-q1.pptx": """
First quarter
Sales, service and people
January to March
====
Sales
We sold 212 stations
Schools bought the most
Norway grew by a third
====
Service
Median repair took eleven days
Most returns were modems
Spare modems now ship the same day
====
People
Two fitters joined in Kiel
The apprentice passed her exam
====
Next
Translate the handbook into Finnish
Find a second source for solar cells
""",
    "talks/review-q2.pptx": """
Second quarter
Sales, service and people
April to June
====
Sales
We sold 187 stations
Vineyards bought the most
Ireland shrank by a tenth
====
Service
Median repair took six days
Most returns were gauges with cracked funnels
A thicker plastic is being tried
====
People
Nobody left
The canteen closes for good in August
====
Next
Move the archive out of the cellar
Show the TS300 at the fair in Lille
""",
    "talks/roadmap.pptx": """
Roadmap
What we build, and when
====
Autumn
TS300 with lightning detector
App for Android tablets
====
Winter
Hive scale for beekeepers, with a catalogue page
Encrypted radio between sensors and logger
====
Spring
A station without any moving part
The old portal is switched off on 1 May
====
Not planned
No cameras: neighbours object
No sale of readings to insurers
""",
    "talks/onboarding.pptx": """
Welcome to Tarn
Your first week
====
Day one
Fetch your badge from the porter
Lunch is on us
====
Day two
Visit the calibration room with a colleague
Solder your own barometer and keep it
====
Whom to ask
Laptops: the helpdesk in Leeds
Pay slips: the wages office, before the tenth
""",
    "notebooks/calibration.ipynb": """
# Calibration of humidity probes

Each probe spends a night above two salt solutions.
====
import numpy as np

salts = {"lithium chloride": 11.3, "sodium chloride": 75.3}
====
The probes need six hours until they settle; what comes before is thrown away.
====
def settle(readings, hours=6):
    return readings[hours * 60 :]
====
def line(seen, known):
    slope, offset = np.polyfit(seen, known, 1)
    return slope, offset
====
Probes whose slope lies outside 0.9 to 1.1 go back to the supplier.
====
rejected = [probe for probe, (slope, _) in fits.items() if not 0.9 <= slope <= 1.1]
""",
    "notebooks/wind.ipynb": """
# Wind at the coast

Gusts of three seconds against means of ten minutes.
====
import pandas as pd

wind = pd.read_parquet("wind.parquet")
====
gusts = wind["speed"].rolling("3s").mean().resample("10min").max()
====
Hours in which the cups were frozen show no wind at all although the sonic sensor has some; they are left out.
====
frozen = (wind["cups"] == 0) & (wind["sonic"] > 2)
wind = wind[~frozen]
====
The ratio of gust to mean is 1.4 over the sea and 1.9 in the town.
""",
    "notebooks/sales.ipynb": """
# Forecast of orders

Orders follow the school year.
====
import pandas as pd

orders = pd.read_csv("orders.csv", parse_dates=["day"])
====
Orders of less than fifty euros are screws and bags; we drop them before the forecast.
====
orders = orders[orders["total"] >= 50]
====
monthly = orders.resample("MS", on="day")["total"].sum()
forecast = monthly.shift(12) * (monthly.iloc[-12:].sum() / monthly.iloc[-24:-12].sum())
====
The error over the last two years was 12 percent; a guess of last year's month alone has 19.
""",
    "code/radio.py": '''
"""Messages between sensors and logger."""

import struct
import time

RETRIES = 4
HEADER = struct.Struct("<HBI")


def pack(sensor: int, kind: int, value: int) -> bytes:
    """Pack one reading for the air."""
    return HEADER.pack(sensor, kind, value)


def checksum(data: bytes) -> int:
    """Fold the bytes of a message into one."""
    total = 0xA5
    for byte in data:
        total ^= byte
    return total


def send(port, message: bytes) -> bool:
    """Send a message, and wait for the logger to confirm it."""
    for attempt in range(RETRIES):
        port.write(message + bytes([checksum(message)]))
        if port.read(1) == b"\\x06":
            return True
        time.sleep(0.2 * 2**attempt)
    return False
''',
    "code/satellite.py": '''
"""Messages by satellite: costly, so several readings share one."""

import zlib

LARGEST = 340


def bundle(readings: list[bytes]) -> list[bytes]:
    """Join readings to messages that the satellite takes."""
    bundles, current = [], b""
    for reading in readings:
        if len(current) + len(reading) > LARGEST:
            bundles.append(current)
            current = b""
        current += reading
    return [*bundles, current]


def squeeze(message: bytes) -> bytes:
    """Compress where that makes a message shorter."""
    packed = zlib.compress(message, 9)
    return packed if len(packed) < len(message) else message


def wait_for_sky(modem, patience: float = 90.0) -> bool:
    """Return whether a satellite came into view within the patience, in seconds."""
    return bool(modem.signal(timeout=patience) >= 2)
''',
    "code/rain.py": '''
"""Rain from the tips of a bucket."""

PER_TIP = 0.2  # millimetres


def amount(tips: int) -> float:
    """Millimetres of rain."""
    return tips * PER_TIP


def is_plausible(per_hour: float) -> bool:
    """Whether a gauge can have measured this."""
    return 0 <= per_hour < 300


def snow_water(depth_cm: float, density: float = 0.1) -> float:
    """Water in fresh snow, in millimetres."""
    return depth_cm * 10 * density
''',
    "code/battery.py": '''
"""When a station saves power."""

LOW, CRITICAL = 11.8, 11.2  # volts of a lead battery


def interval(volts: float, normal: int = 300) -> int:
    """Seconds between two messages."""
    if volts < CRITICAL:
        return 6 * 3600
    if volts < LOW:
        return 4 * normal
    return normal


def may_heat(volts: float, degrees: float) -> bool:
    """Whether the gauge's heater is switched on."""
    return volts >= LOW and degrees < 4


def days_left(ampere_hours: float, milliamperes: float) -> float:
    """How long a battery lasts in the dark."""
    return ampere_hours * 1000 / milliamperes / 24 * 0.8
''',
    "code/portal/accounts.py": '''
"""Accounts of the customers' portal."""

import hashlib
import secrets
from datetime import timedelta

SESSION = timedelta(hours=12)
SHORTEST_PASSWORD = 14


class AccountLocked(Exception):
    """Too many wrong passwords."""


def new_token() -> str:
    """A token for the address bar of a shared chart."""
    return secrets.token_urlsafe(24)


def sign_in(account, password: str) -> str:
    """Check a password and start a session."""
    if account.failures >= 7:
        raise AccountLocked(account.name)
    digest = hashlib.scrypt(password.encode(), salt=account.salt, n=2**14, r=8, p=1)
    if not secrets.compare_digest(digest, account.digest):
        account.failures += 1
        return ""
    account.failures = 0
    return new_token()


def forget(account) -> None:
    """Delete an account; its readings stay without a name."""
    account.store.rename(account.name, "anonymous")
    account.store.delete(account)
''',
    "code/portal/charts.py": '''
"""Charts of the customers' portal."""

COLOURS = {"rain": "#1f6fb2", "wind": "#5a8f29", "temperature": "#c0392b"}


def thin(points: list, most: int = 2000) -> list:
    """Leave points out, so that a chart stays quick."""
    step = max(1, len(points) // most)
    return points[::step]


def gaps(times: list[float], longest: float = 7200) -> list[tuple[float, float]]:
    """Where the line of a chart is broken: no reading for so long."""
    return [(a, b) for a, b in zip(times, times[1:]) if b - a > longest]


def wind_rose(directions: list[float], sectors: int = 16) -> list[int]:
    """How often the wind came from each sector."""
    counts = [0] * sectors
    for degrees in directions:
        counts[round(degrees / 360 * sectors) % sectors] += 1
    return counts
''',
    "policies/travel.md": """
# Travel

Valid since January 2025; it replaces the policy of 2022.

## Booking

Trains are booked by yourself, flights by the office. Take the train wherever the ride is shorter than six hours.
First class is fine on night trains, since a bed is cheaper than a hotel.

## Hotels

We pay up to 140 euros a night, breakfast included. In Tromso and Bergen it may be 190.
If you stay with friends, you may bring them a present of 25 euros instead.

## Meals

You get 38 euros for a full day and 19 for half of one, without receipts.
Alcohol is never reimbursed, not even with customers.

## Claims

Send claims within eight weeks after the journey. Later ones need a word from your manager.
Receipts may be photographed; the paper can go into the bin.
""",
    "policies/travel-2022.md": """
# Travel (2022, no longer valid)

## Booking

The office books everything. Flights are allowed for distances over 400 kilometres.

## Hotels

We pay up to 110 euros a night, without breakfast.

## Meals

You get 31 euros for a full day against receipts.

## Claims

Send claims within four weeks. Paper receipts are kept for ten years.
""",
    "policies/leave.md": """
# Leave

## Holidays

Everybody has 29 days a year, and two more after ten years with us. Days that are left over lapse at the end of March.

## Illness

Call before nine. A doctor's note is needed from the fourth day on.
When a child is ill, you may stay at home for up to twelve days a year.

## Birth and adoption

Both parents have sixteen paid weeks, in one piece or in two.

## Moving house

One day off, once in two years.
""",
    "policies/remote-work.md": """
# Working from home

Up to three days a week, agreed with your team. The Wednesday is for meeting in person.

- A desk and a chair are paid for once, up to 450 euros.
- From abroad you may work for thirty days a year, inside the European Union only.
- Prototypes never leave the building, not even for a weekend.
""",
    "policies/security.md": """
# Security of laptops and data

Disks are encrypted. The screen locks itself after four minutes.

Report a lost laptop to the helpdesk at once, at night by telephone: it is wiped from afar within the hour.

Passwords live in the vault, never in a mail. Visitors use the guest network, whose key changes on Mondays.

Addresses of customers are deleted three years after the last order.
""",
    "policies/purchasing.md": """
# Buying things

| sum | who agrees |
|---|---|
| below 200 euros | nobody, just buy it |
| up to 5,000 euros | the head of your team |
| more | two directors |

From 2,000 euros on we ask three suppliers for an offer, and keep all three.
""",
    "docs/install.rst": """
Installing the logger software
==============================

The software runs on the logger and on any Linux machine for tests.

Requirements
------------

It needs Python 3.11 and 200 MB of disk. On the logger itself the image has all of it.

Installation
------------

Copy the image to a card and start the logger with the button held down::

    tarn-flash image.bin /dev/sdb

The lamp turns green after about two minutes. Do not pull the card before.

Going back
----------

The image before is kept on the second partition. Hold the button for ten seconds to start it.
""",
    "docs/protocol.rst": """
Protocol
========

How sensors and logger talk.

Addresses
---------

Every sensor has an address from 1 to 247; 0 reaches all of them at once.

Timing
------

A sensor answers within 50 milliseconds. The logger asks again twice, then marks the reading as missing.

Units
-----

Temperatures are sent in hundredths of a kelvin, so that no value is negative.
Pressure is sent in pascals and reduced to sea level by the portal, not by the station.
""",
    "docs/portal.rst": """
The portal
==========

Sharing
-------

A chart can be shared by its link; whoever has it can look, and nobody needs an account.

Exports
-------

Readings are exported as CSV or NetCDF. Exports of more than a year are made overnight and sent by mail.

Alarms
------

An alarm is sent once and then stays quiet for an hour, whatever the wind does.
""",
    "docs/glossary.rst": """
Glossary
========

keeper
    Whoever looks after a station, paid or not.

tip
    One fall of the bucket in a rain gauge.

skerry station
    A station that can be reached by boat only, and gets a second battery.

blind week
    Seven days after an installation whose readings are not published.
""",
    "letters/oban-school.txt": """
Dear Ms Duarte,

thank you for lending us the station for the whole term. The pupils of the fourth year have read the gauge every
morning, and found that it rains most on Thursdays, which nobody here doubted.

We would like to keep it for another term. Could you send a new drying bag, and somebody who shows us how to open the
logger? Our caretaker broke the key off in the lock.

Yours, Morag Sinclair
""",
    "letters/fell-estates.txt": """
Dear tenants,

the lift will be out of order from 4 to 15 November, as its cables are replaced. Heavy goods can be taken up by the
crane behind the building if you call the porter one day before.

Please do not store anything on the landing. The inspector found pallets there twice.

Fell Estates
""",
    "letters/insurer.txt": """
Dear Mr Falk,

we have looked at the fire of 22 August. The policy covers the bench and the tools, but not the stock, since lithium
packs were kept outside the cabinet that clause 9 demands. We shall transfer 6,150 euros by the end of the month.

You may object within thirty days.
""",
}
