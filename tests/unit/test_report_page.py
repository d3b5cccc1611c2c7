"""The page is one file that needs nothing, says what the Markdown says, and trusts no text."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from support.manifests import (
    ACCURACY,
    ERRORS,
    MACHINE,
    SPEED,
    ladder,
    manifest,
    matrix,
    random_manifest,
)

from wiola_export.evaluate.divergence import TokenScores
from wiola_export.evaluate.drop import summarize
from wiola_export.evaluate.greedy import Continuation
from wiola_export.report import make_report, to_markdown
from wiola_export.report.page import inline, sides, to_html
from wiola_export.report.sections import sections

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>`$\\frac{1}{0}$"


def report_on(spec=None, *, accuracy=ACCURACY, **changes):
    fields = {"speed": SPEED, "machine": MACHINE, "errors": ERRORS} | changes
    return make_report(spec or manifest(), accuracy=accuracy, **fields)


def page_of(*reports):
    return to_html({f"bundle {i}": report for i, report in enumerate(reports or [report_on()])})


class Reader(HTMLParser):
    """Collects elements, checks that they are closed in order, and keeps the text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page():
    return page_of()


def test_elements_are_closed_in_order(page):
    assert Reader(page).open == []


def test_nothing_is_loaded_and_nothing_runs(page):
    reader = Reader(page)
    references = [v for _, name, v in reader.attributes if name in {"src", "href", "xlink:href"}]

    assert not {"script", "link", "iframe", "object", "img"} & set(reader.tags)
    assert all(value.startswith("#") for value in references)
    assert not [name for _, name, _ in reader.attributes if name.startswith("on")]
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "@import" not in page
    assert re.findall(r"url\((?!#)", page) == []
    assert "default-src 'none'" in page


def test_the_same_report_gives_the_same_bytes(page):
    assert page_of() == page


def test_every_section_and_every_sentence_of_the_markdown_is_there(page):
    text = Reader(page).text

    for section in sections(report_on()):
        assert section.title in text
        for block in section.blocks:
            if isinstance(block, str):
                assert block.replace("`", "") in text


def test_every_picture_is_there(page):
    keys = ("ratios", "divergences", "positions", "size", "error")

    assert Reader(page).tags.count("svg") == len(keys)
    assert all(f'id="bundle-1-{key}-figure_1"' in page for key in keys)


def test_sensitivities_are_a_picture_of_their_own():
    with_nats = report_on(sensitivity={"layers.0.up": 3e-4, "layers.0.qkv_gate": 1e-4})

    assert 'id="bundle-1-sensitivity-figure_1"' in page_of(with_nats)


def test_no_two_elements_have_one_name():
    ids = [v for _, name, v in Reader(page_of(report_on(), report_on())).attributes if name == "id"]

    assert len(ids) == len(set(ids))


def test_every_colour_is_one_of_the_style_sheet(page):
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", page))
    light, dark, paper = (set(re.findall(r"--([a-z0-9-]+):", block)) for block in roots(page))

    assert used <= light
    assert light - {"font"} == dark == paper
    assert "#0101" not in page


def roots(page):
    return re.findall(r":root \{(.*?)\}", page, flags=re.DOTALL)


def test_text_of_a_stranger_is_shown_and_never_read_as_markup():
    hostile = Continuation(
        prompt=HOSTILE, reference=HOSTILE, candidate=HOSTILE + "!", same_tokens=1, tokens=2
    )
    texts = tuple(dataclasses.replace(text, name=HOSTILE) for text in ACCURACY.texts)
    accuracy = dataclasses.replace(ACCURACY, texts=texts, continuations=(hostile,))
    matrices = [matrix(HOSTILE, (64, 64), sources=[HOSTILE])]
    report = report_on(manifest(matrices, name=HOSTILE), accuracy=accuracy, errors={HOSTILE: 1e-5})

    found = Reader(to_html({HOSTILE: report, "other": report_on()}))

    assert not {"script", "img"} & set(found.tags)
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert found.open == []
    assert HOSTILE in found.text
    assert "<script" not in re.sub(r"(?<!\\)`[^`]*`", "", to_markdown(report))


def test_backticks_become_code_and_nothing_else_does():
    assert inline("a `b<c` d") == "a <code>b&lt;c</code> d"
    assert inline("one ` alone <i>") == "one ` alone &lt;i&gt;"


def test_random_weights_have_no_accuracy_on_the_page():
    found = page_of(report_on(random_manifest(), accuracy=None, errors={}))
    text = Reader(found).text

    assert "Random weights: no accuracy can be stated" in text
    assert "perplexit" not in text
    assert "KL" not in text
    assert "tokens a second" in text


def test_a_conversion_that_is_at_fault_stands_out():
    broken = dataclasses.replace(ACCURACY, ladder=ladder(graph_nats=0.08))

    assert 'class="fault"' in page_of(report_on(accuracy=broken))
    assert 'class="fault"' not in page_of()


def test_size_by_part_speed_and_a_scheme_that_does_not_pay_are_there(page):
    tiny = matrix("w", (4, 4), sources=["model.layers.0.mlp.w.weight"], size_bytes=64)
    pays = "this scheme does not pay here"
    text = Reader(page).text

    assert "weights: feed-forward" in text
    assert "1,390 tokens/s" in text
    assert pays not in text
    assert pays in page_of(report_on(manifest([tiny]), errors={}))


def test_replies_are_cut_where_they_part():
    cut = sides(ACCURACY.continuations[0])

    assert (cut.common, cut.reference, cut.candidate) == (" that he ", "had been", "was not")
    assert cut.where == "token 3 of 4 is the first to differ"
    assert sides(ACCURACY.continuations[1]).where == "all 4 tokens alike"


def test_a_bundle_that_loses_nothing_at_all_is_drawn_too():
    zeros = np.zeros((9, 20))
    exact = summarize(
        TokenScores(
            reference_nats=zeros + 3, candidate_nats=zeros + 3, kl_nats=zeros,
            same_top1=zeros == 0, same_top5=np.ones_like(zeros, np.float32),
        )
    )  # fmt: skip
    report = report_on(accuracy=dataclasses.replace(ACCURACY, drop=exact), errors={})

    assert "100.00 %" in page_of(report)
    assert "100.00 %" in page_of(report, report, report_on())


def test_long_names_leave_room_for_the_pictures_and_stay_apart():
    names = ["a" * 200, "a" * 199 + "b"]
    svg = to_html({name: report_on() for name in names})

    cut = "a" * 31 + "…"
    assert f">{cut}<" in svg
    assert f">{cut} #2<" in svg


def test_several_bundles_have_an_overview_in_front():
    smaller = manifest(name="wiola-demo-int4", precision="int4")
    reader = Reader(to_html({"one": report_on(), "two": report_on(smaller)}))

    assert "2 bundles of one checkpoint" in reader.text
    assert reader.text.index("size of the bundle, MiB") < reader.text.index("Where the loss")
    assert [v for tag, name, v in reader.attributes if tag == "article" and name == "id"] == [
        "bundle-1",
        "bundle-2",
    ]
