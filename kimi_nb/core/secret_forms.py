"""The forms by which a secret is known although its value is not: names, headers, tokens.

>>> [data[begin:end] for data in [b"PGPASSWORD=hunter2"] for begin, end in spans(data)]
[b'hunter2']

Every form begins with one of a few words, which are searched for at the speed of memory; only there
its pattern is tried. No pattern goes back over what it has read, so that the time grows with the
text and not faster, whatever stands in it.

The tokens of services are those that detect-secrets 1.5.0 knows by their form, and some more. (The
package itself is not used: it reads a line at a time, 20 times slower than this, replaces nothing,
and would bring an HTTP client into the smallest installation.)
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hyperscan

LONGEST = 24_000  # bytes of a form whose end is searched for; a value may be longer
VALUE = rb"[^\s\"'<>&,;\\\x1b]"  # what a value goes on with
# What a coloured traceback may put between a name and its value.
_GAP = r"(?:\x1b\[[\d;]*m|[ \t])*+"
_QUOTE = r"(?:\\*+(?:[\"']|&quot;|&#39;))?+"
_SET = rf"{_QUOTE}{_GAP}(?:=|:(?!//)|%3D|>(?=[^\s<]{{4,200}}</)){_GAP}{_QUOTE}{_GAP}"
_FIRST = r"[^\s\"'<>&,;\\\x1b\[\](){}$*]"
_MORE = r"[^\s\"'<>&,;\\\x1b]"
# Placeholders for "no value", and names of variables (MY_KEY).
_NOTHING = (
    r"(?!(?:None|null|true|false|True|False|empty|EMPTY|str|string)\b|"
    r"(?-i:[A-Z][A-Z0-9]*+(?:_[A-Z0-9]+)++)(?![\w+/=.-]))"
)
# A value in quotation marks may have spaces.
_SECRET = (
    rf"{_NOTHING}(?:(?<=[\"'])(?P<q>{_FIRST}[^\"'<>\r\n\\\x1b]{{3,}}+)(?=\\?[\"'])|"
    rf"(?P<v>{_FIRST}{_MORE}{{3,}}+))"
)
# What no word of a sentence is: a digit, or letters of both cases within, or 20 characters.
_ODD = rf"(?={_MORE}*?(?-i:\d|[a-z][A-Z])|{_MORE}{{20}})"
_MIXED = rf"(?={_MORE}*?\d)(?={_MORE}*?[A-Za-z])"
_ALONE = r"(?<![A-Za-z0-9])"

_KEYS = (
    "api|access|secret|auth|private|account|encryption|signing|master|session|openai|anthropic|azure|"
    "moonshot|kimi|deepseek|dashscope|mistral|gemini|storage|jwt|hmac"
)
_TOKENS = (
    "api|access|auth|refresh|session|secret|bearer|id|hf|hub|hugging_?face|github|gitlab|modelscope|"
    "user|bot|csrf|xsrf|jwt|npm|pypi|slack|security|wandb"
)
_OWNERS = "db|user|mysql|pg|ssh|smtp|ftp|http|proxy|admin|root|login|redis|mongo"
# Two keys of a site file name a secret of Kubernetes.
_NO_REFERENCE = r"(?<!api_key_)(?<!image_pull_)"
# "pwd" followed by a path (PWD=/home/me) is a folder, not a password.
_NAME = (
    r"(?:pass(?:word|wd|phrase|code)|pwd(?![\s\"']*+[=:][\s\"']*+[/~.])|"
    rf"{_NO_REFERENCE}secret|credentials?|"
    rf"(?:{_KEYS})[_-]?key|(?:{_TOKENS})[_-]?token)"
)
_KEY = re.compile(rf"(?i)(?:^|.*[^A-Za-z0-9]){_NAME}|.*(?:password|passwd|passphrase)")
_VARIABLE = re.compile(
    rf"(?i)(?:.*_)?(?:token|secret|credentials?|(?:{_KEYS})_?key|(?<!ask)pass|pwd|passwd|"
    rf"passphrase)|.*(?:password|passwd|passphrase|(?:{_OWNERS})pass)|.*secret_access_key"
)


def is_secret_key(name: str) -> bool:
    """Return whether a key of a table says that its value is secret.

    >>> is_secret_key("api_key"), is_secret_key("api_key_env"), is_secret_key("eos_token")
    (True, False, False)
    >>> is_secret_key("client_secret"), is_secret_key("api_key_secret")
    (True, False)
    """
    return bool(_KEY.fullmatch(name))


@functools.lru_cache(maxsize=4096)
def is_secret_variable(name: str) -> bool:
    """Return whether the name of an environment variable says that its value is secret.

    >>> [is_secret_variable(one) for one in ("PGPASSWORD", "DB_PASS", "PWD", "SSH_ASKPASS")]
    [True, True, False, False]
    """
    return name.upper() not in ("PWD", "OLDPWD") and bool(_VARIABLE.fullmatch(name))


@dataclass(frozen=True)
class _Form:
    """A pattern, and the lower-case words with one of which it begins; ``v`` is what is secret."""

    words: tuple[bytes, ...]
    text: bytes
    flags: int

    @functools.cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """The pattern, compiled when one of the words first occurs: most never do in a run."""
        return re.compile(self.text, self.flags)


def _form(words: str, pattern: str, *, cased: bool = False) -> _Form:
    flags = re.ASCII | (0 if cased else re.IGNORECASE)
    return _Form(tuple(one.encode() for one in words.split()), pattern.encode(), flags)


def _behind(names: str, alone: str = "") -> str:
    """Return a pattern for what follows one of some names, with a sign or none between."""
    names = names.replace("hugging_?face", "huggingface|hugging_face")
    return "|".join(
        f"(?<={alone}{name}{sign})" for name in names.split("|") for sign in ("", "[_-]")
    )


_PEM_END = r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----"
_FORMS = (
    # A name and its value.
    _form("passw passphrase passcode", rf"pass(?:word|wd|phrase|code){_SET}{_SECRET}"),
    _form("pwd", rf"{_ALONE}pwd(?![\s\"']*+[=:][\s\"']*+[/~.]){_SET}{_SECRET}"),
    _form("secret credential", rf"{_ALONE}(?:{_NO_REFERENCE}secret|credentials?){_SET}{_SECRET}"),
    _form("key", rf"(?:{_behind(_KEYS, _ALONE)})key{_SET}{_SECRET}"),
    _form(
        "key", rf"(?<=[A-Z0-9]_)KEY={_QUOTE}{_NOTHING}{_MIXED}(?P<v>{_MORE}{{12,}}+)", cased=True
    ),
    _form("token=", rf"(?<=[?&;])token=(?P<v>{_FIRST}{_MORE}{{3,}}+)"),
    _form("token", rf"(?:{_behind(_TOKENS, _ALONE)})token{_SET}{_SECRET}"),
    _form(
        "token",
        rf"(?<=[A-Z0-9]_)TOKEN={_QUOTE}{_NOTHING}{_MIXED}(?P<v>{_FIRST}{_MORE}{{7,}}+)",
        cased=True,
    ),
    _form(
        "token", rf"(?<![A-Za-z0-9_])token{_SET}{_NOTHING}{_MIXED}(?P<v>{_FIRST}{_MORE}{{19,}}+)"
    ),
    _form("pass=", rf"(?<=[A-Z0-9_])(?<!BY)(?<!COM)(?<!ASK)PASS={_QUOTE}{_SECRET}", cased=True),
    _form("pass", rf"(?:{_behind(_OWNERS)})pass{_SET}{_SECRET}"),
    _form(
        "signature= sig= credential= security-token=",
        rf"(?<=[?&;-])(?:signature|sig|credential|security-token)=(?P<v>{_FIRST}{_MORE}{{3,}}+)",
    ),
    # Prose mentions --api-key too: after a space only what is no word counts.
    _form(
        "--",
        rf"--(?:(?:[a-z0-9]{{1,30}}-){{0,3}}{_NAME}|token|(?:(?:{_OWNERS})-)?pass)"
        rf"(?:={_QUOTE}{_SECRET}|(?:\\?[\"'],\s*+|[ \t]++){_QUOTE}(?!-){_ODD}{_NOTHING}"
        rf"(?P<w>{_FIRST}{_MORE}{{3,}}+))",
    ),
    _form("sshpass", rf"sshpass[ \t]++-p[ \t]*+{_QUOTE}(?P<v>{_FIRST}{_MORE}{{3,}}+)"),
    _form(
        "curl",
        r"curl\b[^\r\n]{0,200}?[\s\"'](?:-u|-U|--(?:proxy-)?user(?![\w-]))(?:[\"',=\s]{0,4})"
        rf"[^\s:\"'$]{{1,64}}:(?P<v>{_FIRST}{_MORE}{{3,}}+)",
    ),
    # Headers.
    _form(
        "authorization",
        rf"authorization{_QUOTE}{_GAP}:{_GAP}{_QUOTE}(?:(?:bearer|basic|token|apikey|key|negotiate)"
        rf"[ \t]++(?!(?:tokens?|auth\w*|required|missing|headers?|keys?|schemes?|is|was|and|or|the|"
        rf"not|invalid|expected|format)\b)(?P<v>{_FIRST}{_MORE}{{3,}}+)|digest[ \t]++(?P<w>[^\r\n]++)|"
        rf"{_ODD}(?P<x>{_FIRST}{_MORE}{{7,}}+))",
    ),
    _form(
        "bearer basic",
        r"\b(?:bearer|basic)\s++(?=[\w.~+/=-]*?\d|[\w.~+/=-]{20})"
        r"(?P<v>[\w.~+/=-]{8,}+)",
    ),
    _form(
        "cookie",
        rf"(?:cookie(?:{_QUOTE}{_GAP}:{_GAP}{_QUOTE}|[\"'],\s?b?[\"'])|(?<=--)cookie[= ]{_QUOTE})"
        r"(?=[^\r\n\"'=\[*]{1,200}=)(?P<v>[^\r\n\"'\\\x1b\[*][^\r\n\"'\\\x1b]{3,}+)",
    ),
    # URLs.
    _form("://", r"://[^\s/:@\"'<>]*+:(?!\$|\[redacted\])(?P<v>[^\s/\"'<>]+)@"),
    _form("hooks.slack.com/services/", r"hooks\.slack\.com/services/(?P<v>[\w/]{8,}+)"),
    # Keys and tokens.
    _form(
        "-----begin",
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:"
        rf"(?:[^-]|-(?!----)){{0,20000}}{_PEM_END}|"
        r"(?:(?:\s|\\+[nr])++[A-Za-z0-9+/=]{16,}+)*+)",
        cased=True,
    ),
    _form("eyj", r"(?<![\w-])eyJ[\w-]{6,}+\.[\w-]{6,}+\.[\w-]*+", cased=True),
    _form("sk-", r"(?<![\w-])sk-(?=[\w-]*?\d)[A-Za-z0-9_-]{16,}+", cased=True),
    _form("hf_", r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{20,}+", cased=True),
    _form("ghp_ gho_ ghu_ ghs_ ghr_", r"(?<![A-Za-z0-9])gh[pousr]_[A-Za-z0-9]{20,}+", cased=True),
    _form("github_pat_", r"(?<!\w)github_pat_\w{20,}+", cased=True),
    _form(
        "glpat- gldt- glft- glsoat- glrt- glcbt- glimt- glptt- glagent- gloas-",
        r"(?<![\w-])gl(?:pat|dt|ft|soat|rt|cbt|imt|ptt|agent|oas)-[\w-]{16,}+",
        cased=True,
    ),
    _form("gr1348941", r"\bGR1348941[\w-]{20,}+", cased=True),
    _form("xox", r"\bxox[abeoprs]-[\w-]{10,}+", cased=True),
    _form(
        "akia asia abia acca",
        r"(?<![A-Za-z0-9])A(?:KI|SI|BI|CC)A[0-9A-Z]{16}(?![A-Za-z0-9])",
        cased=True,
    ),
    _form("aiza", r"\bAIza[\w-]{35}", cased=True),
    _form("nvapi-", r"\bnvapi-[\w-]{20,}+", cased=True),
    _form(
        "ms-",
        r"(?<![\w-])ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        cased=True,
    ),
    _form("npm_", r"(?<!\w)npm_[A-Za-z0-9]{36}", cased=True),
    _form("_authtoken=", rf"_authToken=(?P<v>{_FIRST}{_MORE}{{3,}}+)"),
    _form("pypi-age", r"\bpypi-AgE[\w-]{60,}+", cased=True),
    _form("sg.", r"(?<!\w)SG\.[\w-]{22}\.[\w-]{43}", cased=True),
    _form("sk_live_ rk_live_", r"(?<!\w)[rs]k_live_[0-9A-Za-z]{24,}+", cased=True),
    _form("sq0csp-", r"\bsq0csp-[\w-]{43}", cased=True),
    _form(":aa", r"(?<=\d{8}):(?P<v>AA[\w-]{33})(?![\w-])", cased=True),
    _form("akcp", r"(?<![A-Za-z0-9])AKCp[A-Za-z0-9]{10,}+", cased=True),
)


_WORDS = tuple(dict.fromkeys(word for form in _FORMS for word in form.words))
_LONG = 256 << 10  # bytes from which on one search for all words is quicker than one for each


def spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of what looks secret, in no order; they may overlap."""
    places = _in_one_pass(data) if len(data) >= _LONG else _one_by_one(data.lower())
    for form in _FORMS:
        for word in form.words:
            done = 0
            for at in places.get(word, ()):
                if at < done:
                    continue
                if found := form.pattern.match(data, at):
                    done = found.end()
                    name = found.lastgroup
                    yield found.span(name) if name else found.span()


def _one_by_one(low: bytes) -> dict[bytes, list[int]]:
    """Return where each word stands, in a text in lower case."""
    out = {}
    for word in _WORDS:
        at = low.find(word)
        if at >= 0:
            found = out[word] = [at]
            while (at := low.find(word, at + 1)) >= 0:
                found.append(at)
    return out


def _in_one_pass(data: bytes) -> dict[bytes, list[int]]:
    """Return the same, by Hyperscan."""
    import hyperscan  # start-up: only for long texts

    out: dict[bytes, list[int]] = {}

    def note(number: int, begin: int, end: int, flags: int, context: object) -> None:
        word = _WORDS[number]
        out.setdefault(word, []).append(end - len(word))

    database = _database()
    database.scan(data, match_event_handler=note, scratch=hyperscan.Scratch(database))
    return out


@functools.cache
def _database() -> hyperscan.Database:
    import hyperscan  # start-up: as above

    found = hyperscan.Database()
    found.compile(
        expressions=[re.escape(word) for word in _WORDS],
        ids=list(range(len(_WORDS))),
        elements=len(_WORDS),
        flags=[hyperscan.HS_FLAG_CASELESS] * len(_WORDS),
    )
    return found
