"""The catalogues of translations: extract, merge, compile, and say what is missing or stale.

    python tests/habits/catalogues.py            # writes them (make i18n)
    python tests/habits/catalogues.py --check    # exit code 1 where one is out of date

People translate kimi_nb/data/i18n/LANGUAGE.po. A text whose English has changed keeps its old
translation as "fuzzy" until somebody looks at it; one that is gone is kept at the end ("#~").
kimi_nb/data/i18n/LANGUAGE.json is what the program reads: only what is certain. The notebooks are
translated in notebooks/LANGUAGE.po, and made from it (translated_notebooks.py).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from babel.messages import pofile
from babel.messages.catalog import Catalog, Message

from habits import messages, translated_notebooks
from kimi_nb.i18n.templates import Template, fill

FOLDER = messages.DATA / "i18n"
LANGUAGES = ("zh",)
_HEADER = """\
# What people read, in another language. `make i18n` brings in new English texts; docs/translation.md
# says how to translate them. The terms are those of terms.yaml."""


def template() -> Catalog:
    """Every English text, each with the files where it stands."""
    out = Catalog(project="kimi_nb", header_comment=_HEADER)
    for one in messages.extracted().values():
        files = dict.fromkeys(place.rsplit(":", 1)[0] for place in one.places)
        out.add(one.text, locations=[(file, 0) for file in sorted(files)])
    return out


def read(path: Path, language: str = "zh") -> Catalog:
    """A catalogue as it is on disk; an empty one if there is none."""
    if not path.exists():
        return Catalog(locale=language, header_comment=_HEADER)
    with path.open("rb") as file:
        return pofile.read_po(file, locale=language)


def merged(path: Path, wanted: Catalog, language: str = "zh") -> Catalog:
    """A catalogue with today's texts; placeholders may have new names where the text is the same."""
    there = read(path, language)
    known = {Template(str(one.id)).literals: one for one in there if one.id}
    for one in wanted:
        same = known.get(Template(str(one.id)).literals) if one.id else None
        if same is not None and same.id != one.id:
            there.delete(str(same.id))
            there.add(str(one.id), _renamed(same, str(one.id)), flags=same.flags)
    there.update(wanted, update_header_comment=True)
    return there


def _renamed(old: Message, text: str) -> str:
    """The translation of a text of which only the names of placeholders have changed."""
    names = dict(zip(Template(str(old.id)).names, Template(text).names, strict=True))
    return fill(str(old.string), {name: "{" + new + "}" for name, new in names.items()})


def text_of(catalog: Catalog) -> str:
    """A catalogue as a PO file: no line numbers and no dates, which would change with all else."""
    out = io.BytesIO()
    pofile.write_po(out, catalog, width=0, include_lineno=False, omit_header=True)
    return f'{_HEADER}\nmsgid ""\nmsgstr ""\n"Language: {catalog.locale}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n{out.getvalue().decode()}'


def certain(catalog: Catalog) -> dict[str, str]:
    """Each text with its translation, where somebody has looked at it."""
    return {
        str(one.id): str(one.string) for one in catalog if one.id and one.string and not one.fuzzy
    }


def missing(catalog: Catalog) -> list[str]:
    """The texts without a translation, or with one of an older text."""
    return [str(one.id) for one in catalog if one.id and (not one.string or one.fuzzy)]


def compiled(catalog: Catalog) -> str:
    """What the program reads."""
    return json.dumps(certain(catalog), ensure_ascii=False, indent=0) + "\n"


def out_of_date(files: Iterable[tuple[Path, str]], check: bool) -> list[Path]:
    """Write files that differ from a text (or only say so); return them."""
    different = [
        (path, text)
        for path, text in files
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in () if check else different:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [path for path, _ in different]


def _files(
    language: str, wanted: Catalog, cells: Catalog
) -> tuple[list[tuple[Path, str]], list[str]]:
    """The files of a language with their texts, and what lacks a translation."""
    catalog = merged(FOLDER / f"{language}.po", wanted, language)
    book = merged(translated_notebooks.FOLDER / f"{language}.po", cells, language)
    files = [
        (FOLDER / f"{language}.po", text_of(catalog)),
        (FOLDER / f"{language}.json", compiled(catalog)),
        (translated_notebooks.FOLDER / f"{language}.po", text_of(book)),
        *translated_notebooks.made(language, certain(book)),
    ]
    return files, [*missing(catalog), *missing(book)]


def main(check: bool) -> int:
    """Write or check the catalogues and the notebooks; print what is missing."""
    wanted, cells, bad = template(), translated_notebooks.template(_HEADER), []
    for language in LANGUAGES:
        files, lacks = _files(language, wanted, cells)
        bad += out_of_date(files, check)
        gone = translated_notebooks.stale(language, [path for path, _ in files])
        for path in () if check else gone:
            path.unlink()
        bad += gone
        print(f"{language}: {len(lacks)} texts without a translation", file=sys.stderr)
        for text in lacks[:20]:
            print(f"  {text.splitlines()[0]}", file=sys.stderr)
    for path in bad if check else ():
        print(f"{path.relative_to(messages.ROOT)}: out of date; make i18n writes it.")
    return int(check and bool(bad))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
