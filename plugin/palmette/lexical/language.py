"""Tell the language of texts by their function words, and by scripts that one language writes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from palmette.lexical.analyser import FUNCTION_WORDS, LANGUAGE, check_language, languages

AUTO = "auto"
"""The stemmer of the language that most texts are written in."""
TEXTS = 256
"""Largest number of texts that are looked at, spread evenly."""
SAMPLE_CHARACTERS = 2000
"""Characters of a text that are looked at, from its middle."""
SHORT = 120
"""Texts of fewer letters are looked at together."""
LEAST_SHARE = 0.14
"""Least share of a text's words that are its language's function words; they are a third to a half of English text."""
LEAST_RATIO = 1.15
"""Least ratio of the best language's function words to those of the next."""

_WORD = re.compile(r"[^\W\d_]+")
_SCRIPTS = {
    language: (re.compile(f"[{letters}]"), least)
    for language, letters, least in (
        ("japanese", "\u3040-\u30ff", 0.1),  # before Chinese: Kana stand between Han characters
        ("chinese", "\u3400-\u9fff", 0.3),
        ("korean", "\uac00-\ud7af", 0.3),
        ("thai", "\u0e00-\u0e7f", 0.3),
        ("hebrew", "\u0590-\u05ff", 0.3),
        ("armenian", "\u0530-\u058f", 0.3),
        ("tamil", "\u0b80-\u0bff", 0.3),
    )
}
"""Languages that are told by their letters, and the least share of a text's letters."""
_WORDS = {
    language: FUNCTION_WORDS.get(language, frozenset()).union(words.split())
    for language, words in {
        "arabic": "في من على أن إلى عن ما لا هذا هذه التي الذي مع كان كانت بعد قبل أو ثم قد كل بين هو هي و حتى إذا",
        "basque": "eta da ez ere bat du izan dira zen hau zuen baina edo egin dute dago beste behar hori bere dago",
        "bulgarian": "и на да се от за не в са че с по като при до ще който която но или има това този беше си му",
        "catalan": "el la de i a que en un una els les per és amb no del al es se va més però com són dels al han",
        "czech": "a v se na je že s z do o i to k ve pro za by ale si po jako od jsem který která jsou bylo byl není",
        "danish": "og i at er en et den det til på af for med som de der ikke har var jeg vi han hun blev kan skal fra "
        "efter ved hvis når eller så men hvor være været bliver nogle også sig deres ud op fordi",
        "dutch": "de het een en van in is dat op te zijn met voor niet aan er om ook als bij door naar wordt deze dit "
        "maar of uit hij ze ik die was wordt worden kan moet heeft",
        "english": "it also all any been before but out up only over you your we he she",
        "esperanto": "la kaj de en estas ne al por ke li kun mi ĝi kiu el sed oni tio pri ankaŭ estis ili ni vi la pli",
        "estonian": "ja on ei et see kui ka oli mis ta oma aga või siis kes nagu seda ning veel ma selle ole ära kõik",
        "finnish": "ja on ei se että oli hän mutta ovat kun niin myös joka tai jos mitä ole sen siitä tämä vain kuin "
        "jonka sitä ollut hänen voi",
        "french": "nous vous ils cette aussi même fait tout comme plus ai ont avait être avoir si bien sans mon ma",
        "german": "ich wir ihr du er man wenn aber dann noch nur kann werden wurde haben hatte diese dieser dieses "
        "sind kein keine mein meine ihre ihr unter gegen damit ob",
        "greek": "και το να του η της με που την από για είναι στο ο οι τα θα δεν των τη τον σε μας ένα στην κι αν μια",
        "hindi": "के का की में है और से को पर यह कि एक हैं नहीं था वह ने भी इस लिए हो कर तो साथ जो या थे",
        "hungarian": "a az és hogy nem is egy van meg de ez volt el csak ha már mint vagy azt ki még minden lehet kell "
        "sem így akkor",
        "indonesian": "yang dan di ini itu dengan untuk dari tidak dalam pada akan ada ke adalah atau juga oleh saya "
        "bisa sudah karena mereka kami",
        "irish": "an na agus ar is i a go le tá sé ní do bhí ag sin leis mar dá níos ó ach atá bhfuil chun nach ina",
        "italian": "questo questa sono era anche come ma se ho mi ti lei loro suo sua degli alle dalle quando dove "
        "essere hanno nelle",
        "lithuanian": "ir kad į yra su iš tai kaip bet o ar jis buvo už apie dėl per nuo iki jo ne taip tik jau kai ji",
        "norwegian": "og i det er på en et som til av for med at ikke de har den jeg var vi han hun ble kan skal fra "
        "men etter seg så hva "
        "ved hvis når eller så hvor være vært blir noen også deres ut opp fordi mellom",
        "persian": "و در به از که این را با است برای آن یک خود تا کرد بر هم نیز شد می شود اما یا ها بود های",
        "polish": "i w na z się nie do to że jest o jak po co ale za od przez dla tym czy był która który są oraz jego "
        "może tak już",
        "portuguese": "eu ele ela este esta isso também muito quando onde foi ser tem ter nas aos pelos até já seu",
        "romanian": "și în de la nu pe cu a că care din mai să este o un pentru sunt ce se au al ale lui fi dar sau",
        "russian": "и в не на что с он как это по но из у за от то для о же так она мы его все был к бы или вы я они "
        "если нет при после перед чтобы уже можно быть есть будет будут этот эта эти который ещё только до очень",
        "serbian": "и је у да се на за не са од што су као али по из до који која би ће то i je u da se na za ne sa od "
        "što su kao ali po iz do koji koja bi će to",
        "spanish": "yo ella este esta eso muy también cuando donde fue ser hay tiene desde hasta sin sobre está sus lo",
        "swedish": "och i att det som en på är av för med den till inte har de ett om jag var vi han hon kan ska från "
        "men så eller när man sig "
        "efter vid där vara varit blir också ut upp eftersom mellan innan",
        "turkish": "ve bir bu da de için ile çok ne olarak daha gibi olan var kadar ama sonra o ki mi her değil ben en "
        "ya veya",
        "ukrainian": "і в не на що з він як це по але у за від то для до та так вона ми його був або ви я вони є й щоб "
        "якщо при після щоб уже можна бути є буде цей ця ці які який ще тільки дуже",
    }.items()
}


def stemmer_for(language: str | None, texts: Sequence[str] = ()) -> str | None:
    """Return the stemmer of a new index: as given, or for ``auto`` that of the texts, else English.

    A language without a stemmer gets none, but for scripts of their own: Latin words in such texts are often English.
    """
    if not isinstance(language, str) or language != AUTO:
        return check_language(language)
    told = language_of(texts)
    if told is None or (told in _SCRIPTS and told not in languages()):
        return LANGUAGE
    return told if told in languages() else None


def language_of(texts: Sequence[str]) -> str | None:
    """Tell the language of most texts; ``None`` if they are short, mixed or hardly sentences, as code is.

    A text counts by its letters. The language has more than half of those in texts whose language is told.
    """
    step = max(1, -(-len(texts) // TEXTS))
    counts, short = Counter[str](), list[str]()
    for text in islice(texts, 0, None, step):
        start = max(0, (len(text) - SAMPLE_CHARACTERS) // 2)
        words = _WORD.findall(text[start : start + SAMPLE_CHARACTERS].lower())
        if sum(map(len, words)) < SHORT:
            short += words
        elif told := _language_of_words(words):
            counts[told] += sum(map(len, words))
    letters = sum(map(len, short))
    if letters >= SHORT and (told := _language_of_words(short)):
        counts[told] += letters
    if not counts:
        return None
    [(language, count)] = counts.most_common(1)
    return language if 2 * count > counts.total() else None


def _language_of_words(words: Sequence[str]) -> str | None:
    """Tell the language of a text by its script, else by its function words."""
    letters = "".join(words)
    for language, (script, least) in _SCRIPTS.items():
        if len(script.findall(letters)) > least * len(letters):
            return language
    counts = Counter(word for word in words if len(word) > 1 or not word.isascii())  # code has variables of one letter
    found = {language: sum(map(counts.__getitem__, own)) for language, own in _WORDS.items()}
    best, second = sorted(found, key=found.__getitem__, reverse=True)[:2]
    told = found[best] > LEAST_SHARE * len(words) and found[best] > LEAST_RATIO * found[second]
    return best if told else None
