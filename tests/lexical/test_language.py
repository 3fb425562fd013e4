"""A text's language is told by its function words or its script; short, mixed and code-only texts are not guessed."""

from __future__ import annotations

import pytest

from palmette.errors import ConfigError
from palmette.lexical.language import language_of, stemmer_for

LETTERS = {
    "english": "The lease of the flat ends on the last day of the month. Hand the keys to the caretaker and read the "
    "meters before you leave, or the deposit will not be paid back to you.",
    "german": "Der Mietvertrag für die Wohnung im dritten Stock endet am letzten Tag des Monats. Bitte geben Sie die "
    "Schlüssel beim Hausmeister ab und lesen Sie die Zähler ab, bevor Sie ausziehen.",
    "french": "Le contrat de location de l'appartement prend fin le dernier jour du mois. Veuillez remettre les clés "
    "au gardien et relever les compteurs avant de partir, sinon la caution ne sera pas rendue.",
    "spanish": "El contrato de alquiler del piso termina el último día del mes. Entregue las llaves al conserje y "
    "anote la lectura de los contadores antes de irse, porque si no se pierde la fianza.",
    "italian": "Il contratto di affitto dell'appartamento scade l'ultimo giorno del mese. Consegni le chiavi al "
    "custode e legga i contatori prima di lasciare la casa, altrimenti la cauzione non viene restituita.",
    "portuguese": "O contrato de arrendamento do apartamento termina no último dia do mês. Entregue as chaves ao "
    "porteiro e anote a leitura dos contadores antes de sair, ou a caução não é devolvida.",
    "dutch": "Het huurcontract van het appartement eindigt op de laatste dag van de maand. Lever de sleutels in bij de "
    "huismeester en lees de meters af voordat u vertrekt, anders krijgt u de borg niet terug.",
    "swedish": "Hyresavtalet för lägenheten upphör den sista dagen i månaden. Lämna nycklarna till vaktmästaren och "
    "läs av mätarna innan du flyttar, annars får du inte tillbaka din deposition.",
    "danish": "Lejekontrakten for lejligheden udløber den sidste dag i måneden. Aflever nøglerne til viceværten og "
    "aflæs målerne, før du flytter, ellers bliver depositummet ikke betalt tilbage af udlejeren.",
    "russian": "Договор аренды квартиры заканчивается в последний день месяца. Отдайте ключи дворнику и снимите "
    "показания счётчиков до того, как уедете, иначе залог не будет возвращён, и вы потеряете деньги.",
    "finnish": "Asunnon vuokrasopimus päättyy kuukauden viimeisenä päivänä. Palauta avaimet talonmiehelle ja lue "
    "mittarit ennen kuin muutat, sillä muuten vakuutta ei makseta takaisin, vaikka se on jo maksettu.",
    "turkish": "Dairenin kira sözleşmesi ayın son günü sona erer. Taşınmadan önce anahtarları kapıcıya teslim edin ve "
    "sayaçları okuyun, çünkü bu yapılmazsa depozito geri ödenmez ve bir daha da istenemez.",
    "greek": "Το συμβόλαιο για το διαμέρισμα λήγει την τελευταία μέρα του μήνα. Παραδώστε τα κλειδιά στον θυρωρό και "
    "διαβάστε τους μετρητές πριν φύγετε, αλλιώς η εγγύηση δεν επιστρέφεται.",
    "arabic": "ينتهي عقد إيجار الشقة في آخر يوم من الشهر. سلم المفاتيح إلى البواب واقرأ العدادات قبل أن تغادر، "
    "لأن التأمين لا يعاد إلى المستأجر الذي لم يسلم المفاتيح في هذا اليوم أو بعد ذلك.",
    "japanese": "アパートの賃貸契約は月の最後の日に終わります。引っ越す前に管理人に鍵を渡してください。" * 3,
    "chinese": "公寓的租约在本月最后一天到期。请在搬走之前把钥匙交给管理员，否则押金不予退还。" * 4,
    "korean": "아파트 임대 계약은 이달 마지막 날에 끝납니다. 이사하기 전에 관리인에게 열쇠를 돌려주십시오." * 4,
}
"""One letter in many languages."""
CODE = "def area(shape):\n    if shape.kind in KINDS:\n        return shape.w * shape.h\n    raise ValueError(shape)\n"


@pytest.mark.parametrize("language", LETTERS)
def test_the_language_of_a_letter(language: str) -> None:
    assert language_of([LETTERS[language]]) == language


def test_what_is_short_mixed_or_code_is_not_guessed() -> None:
    assert language_of([]) is language_of([""]) is language_of(["Das Haus ist alt."]) is None
    assert language_of([CODE * 9]) is language_of(["x" * 5000, "3.14 " * 500]) is None
    assert language_of([LETTERS["german"], LETTERS["french"], LETTERS["spanish"]]) is None
    assert language_of([*LETTERS["german"].split(",") * 2]) == "german"  # short texts are taken together
    assert language_of([CODE * 9] * 50 + [LETTERS["german"]] * 3) == "german"  # code is in no language
    assert language_of([LETTERS["english"]] * 3 + [LETTERS["german"]] * 2) == "english"


def test_the_stemmer_of_a_new_index() -> None:
    assert stemmer_for("auto", [LETTERS["german"]]) == "german"
    assert stemmer_for("auto", [LETTERS["japanese"]]) == stemmer_for("auto", [CODE]) == "english"
    assert stemmer_for("french", [LETTERS["german"]]) == "french"
    assert stemmer_for(None, [LETTERS["german"]]) is None
    with pytest.raises(ConfigError, match="no stemmer for language='Auto'"):
        stemmer_for("Auto")
