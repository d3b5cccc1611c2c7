"""The faces of a report, byte for byte."""

from support.manifests import ACCURACY, ERRORS, MACHINE, SPEED, manifest, random_manifest

from wiola_export.report import make_report, model_card, to_json, to_markdown

MEASURED = make_report(manifest(), accuracy=ACCURACY, speed=SPEED, machine=MACHINE, errors=ERRORS)
RANDOM = make_report(random_manifest(), accuracy=None, speed=SPEED, machine=MACHINE)


def test_json(golden):
    golden("report.json", to_json(MEASURED))


def test_markdown(golden):
    golden("report.md", to_markdown(MEASURED))


def test_json_of_random_weights(golden):
    golden("report_random.json", to_json(RANDOM))


def test_markdown_of_random_weights(golden):
    golden("report_random.md", to_markdown(RANDOM))


def test_model_card(golden):
    golden("model_card.md", model_card(manifest(), MEASURED))


def test_model_card_of_random_weights(golden):
    golden("model_card_random.md", model_card(random_manifest(), RANDOM))
