"""The style sheet of the panel, and pieces of HTML that it is for.

Colours are those of the page: of JupyterLab and Notebook 7 (``--jp-*``), of VS Code
(``--vscode-*``), else of the browser. There is one accent, and red is for mistakes alone.
"""

from __future__ import annotations

import html

from kimi_nb import show
from kimi_nb.core import known_secrets
from kimi_nb.i18n import translate

_CSS = """
.kimi-panel {
  --kimi-ink: var(--jp-ui-font-color1, var(--vscode-foreground, CanvasText));
  --kimi-soft: var(--jp-ui-font-color2, var(--vscode-descriptionForeground, GrayText));
  --kimi-line: var(--jp-border-color2, var(--vscode-widget-border, rgba(128, 128, 128, .4)));
  --kimi-ground: var(--jp-layout-color1, var(--vscode-editor-background, Canvas));
  --kimi-raised: var(--jp-layout-color2, var(--vscode-sideBar-background, rgba(128, 128, 128, .1)));
  --kimi-accent: var(--jp-brand-color1, var(--vscode-textLink-foreground, #0072b2));
  --kimi-wrong: var(--jp-error-color1, var(--vscode-errorForeground, #d32f2f));
  --jp-widgets-inline-label-width: auto;
  --jp-widgets-horizontal-tab-width: auto;
  border: 1px solid var(--kimi-line); border-radius: 8px; overflow: hidden;
  color: var(--kimi-ink); background: var(--kimi-ground); max-width: 1200px; container-type: inline-size;
}
.kimi-panel .widget-html, .kimi-panel .widget-html-content { line-height: 1.45; height: auto; margin: 0; }
.kimi-panel .widget-html-content { width: 100%; overflow-x: auto; }
.kimi-panel h4 { margin: 4px 0 8px; font-size: 14px; }
.kimi-panel p { margin: 0 0 8px; }
.kimi-panel .kimi-part { padding: 12px 16px; border-bottom: 1px solid var(--kimi-line); overflow: visible; }
.kimi-panel .kimi-title { display: flex; align-items: flex-start; gap: 8px; overflow: visible; }
.kimi-panel .kimi-title > :first-child { flex: 1 1 auto; min-width: 0; }
.kimi-panel .kimi-title > .widget-toggle-buttons { flex: 0 0 auto; width: auto; margin: 0; overflow: visible; }
.kimi-panel .kimi-title .jupyter-button {
  width: auto; min-width: 44px; height: 26px; line-height: 24px; padding: 0 8px; margin: 0;
  background: none; border: 1px solid var(--kimi-line); color: var(--kimi-ink); box-shadow: none;
}
.kimi-panel .kimi-title .jupyter-button.mod-active { border-color: var(--kimi-accent); color: var(--kimi-ink); font-weight: 600; }
.kimi-panel .kimi-head { background: var(--kimi-raised); }
.kimi-panel .kimi-name { font-size: 17px; font-weight: 600; margin-right: 10px; }
.kimi-panel .kimi-badge { border: 1px solid currentColor; border-radius: 9px; padding: 1px 8px; font-size: 11px; }
.kimi-panel .kimi-soft { color: var(--kimi-soft); }
.kimi-panel .kimi-head .kimi-soft { color: inherit; }
.kimi-panel .kimi-grid {
  display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 10px 16px;
}
.kimi-panel .kimi-asked { grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); padding-bottom: 10px; }
.kimi-panel .kimi-found, .kimi-panel .kimi-loads { padding-top: 12px; }
.kimi-panel .kimi-loads .kimi-field { flex: 1 1 300px; }
.kimi-panel .kimi-wide, .kimi-panel .kimi-roomy { grid-column: span 2; }
@container (min-width: 760px) {
  .kimi-panel .kimi-roomy { grid-column: auto; }
}
.kimi-panel .kimi-field { overflow: visible; margin: 0; min-width: 0; }
.kimi-panel .kimi-field > .widget-inline-hbox {
  flex-direction: column; align-items: stretch; width: 100%; height: auto; margin: 0; overflow: visible;
}
.kimi-panel .kimi-field .widget-label {
  width: auto; height: auto; margin: 0 0 3px; text-align: left; line-height: 1.4;
  font-size: 12px; color: var(--kimi-soft); overflow: visible;
}
.kimi-panel select { appearance: auto; background-image: none; }
.kimi-panel select, .kimi-panel input { border-radius: 4px !important; min-height: 28px; }
.kimi-panel .kimi-field select, .kimi-panel .kimi-field input { width: 100%; box-sizing: border-box; flex: none; }
.kimi-panel .kimi-field select { text-overflow: ellipsis; }
.kimi-panel .kimi-sizes { gap: 8px; }
.kimi-panel .kimi-role { display: flex; flex-flow: row wrap; align-items: flex-end; gap: 6px 10px; overflow: visible; }
.kimi-panel .kimi-role .kimi-field { flex: 1 1 84px; max-width: 116px; }
.kimi-panel .kimi-role > .kimi-uses { width: auto; flex: 1 1 160px; padding-bottom: 5px; color: var(--kimi-soft); }
.kimi-panel .kimi-wrong select, .kimi-panel .kimi-wrong input {
  border: 2px solid var(--kimi-wrong) !important;
}
.kimi-panel .kimi-wrong .widget-label { color: var(--kimi-wrong); font-weight: 600; }
.kimi-panel .kimi-alert {
  border-left: 3px solid var(--kimi-wrong); padding: 2px 0 2px 8px; margin-top: 4px;
  color: var(--kimi-wrong); white-space: pre-wrap; overflow-wrap: anywhere; font-size: 12px;
}
.kimi-panel .kimi-actions { display: flex; flex-flow: row wrap; align-items: flex-start; gap: 8px; overflow: visible; }
.kimi-panel .kimi-loads { align-items: flex-end; }
.kimi-panel .kimi-actions .jupyter-button { margin: 0; width: 92px; height: 30px; line-height: 28px; border-radius: 4px; }
.kimi-panel .kimi-actions .jupyter-button:not(.mod-primary) {
  background: none; border: 1px solid var(--kimi-line); color: var(--kimi-ink);
}
.kimi-panel .kimi-actions .mod-primary {
  background: color-mix(in srgb, var(--kimi-accent), black 30%); border: 1px solid transparent; color: #fff;
}
.kimi-panel .kimi-actions .jupyter-button:disabled { opacity: .45; }
.kimi-panel .kimi-deploy { display: flex; flex-flow: row wrap; gap: 8px; margin-left: auto; overflow: visible; }
.kimi-panel .kimi-deploy .kimi-field { width: 232px; }
.kimi-panel .kimi-deploy input { min-height: 30px; margin: 0; }
.kimi-panel .kimi-status { width: 100%; padding-top: 8px; }
.kimi-panel progress { accent-color: var(--kimi-accent); width: 180px; height: 10px; margin-right: 10px; vertical-align: middle; }
.kimi-panel .widget-tab > .lm-TabBar, .kimi-panel .widget-tab > .p-TabBar {
  overflow: visible; min-height: 34px; height: auto;
}
.kimi-panel .widget-tab > .lm-TabBar > .lm-TabBar-content, .kimi-panel .widget-tab > .p-TabBar > .p-TabBar-content {
  flex-wrap: wrap; border-bottom: 1px solid var(--kimi-line); padding: 0 8px;
}
.kimi-panel .widget-tab > .lm-TabBar .lm-TabBar-tab, .kimi-panel .widget-tab > .p-TabBar .p-TabBar-tab {
  flex: 0 0 auto; min-width: 0; max-width: none; border: 0; border-bottom: 3px solid transparent;
  padding: 6px 8px; margin: 0; background: none; color: var(--kimi-soft); transform: none; height: auto;
  line-height: 1.4;
}
.kimi-panel .widget-tab > .lm-TabBar .lm-TabBar-tab.lm-mod-current,
.kimi-panel .widget-tab > .p-TabBar .p-TabBar-tab.p-mod-current {
  border-bottom-color: var(--kimi-accent); color: var(--kimi-ink); font-weight: 600; background: none;
}
.kimi-panel .widget-tab > .lm-TabBar .lm-TabBar-tab.lm-mod-current::before { display: none; }
@container (max-width: 420px) { .kimi-panel .kimi-grid > * { grid-column: span 2; } }
@container (max-width: 640px) {
  .kimi-panel .widget-tab > .lm-TabBar .lm-TabBar-tab { padding: 6px 5px; font-size: 12px; }
}
.kimi-panel .widget-tab > .widget-tab-contents { border: 0; padding: 12px 16px; background: none; color: inherit; }
.kimi-panel .lm-TabBar-tab:focus-visible, .kimi-panel button:focus-visible, .kimi-panel select:focus-visible,
.kimi-panel input:focus-visible { outline: 2px solid var(--kimi-accent) !important; outline-offset: 1px; }
.kimi-panel .kimi-copy { border: 1px solid var(--kimi-line); border-radius: 6px; margin: 0 0 10px; overflow: hidden; }
.kimi-panel .kimi-copy > header {
  display: flex; align-items: center; justify-content: space-between; gap: 8px; padding: 4px 4px 4px 10px;
  background: var(--kimi-raised); font-family: monospace; font-size: 12px;
}
.kimi-panel .kimi-copy button {
  border: 1px solid var(--kimi-line); border-radius: 4px; background: none; color: inherit; padding: 2px 12px; cursor: pointer;
}
.kimi-panel .kimi-copy pre {
  margin: 0; padding: 8px 10px; max-height: 420px; overflow: auto; line-height: 1.4; font-size: 12px; color: inherit;
}
.kimi-panel .kimi-said { font-family: monospace; font-size: 11px; color: var(--kimi-soft); overflow-wrap: anywhere; }
.kimi-panel table { border-collapse: collapse; }
.kimi-panel td, .kimi-panel th { padding: 4px 10px 4px 0; border-top: 1px solid var(--kimi-line); }
"""
# Else JupyterLab takes keys that are pressed on a list or a button as its own: "b" adds a cell.
_KEYS = (
    "this.closest('.kimi-panel').addEventListener('focusin',"
    "e=>e.target.setAttribute('data-lm-suppress-shortcuts','true'))"
)
# Only a secure page (https, 127.0.0.1) has a clipboard; elsewhere the text is selected and copied.
_COPY = (
    "const t=this.closest('.kimi-copy').querySelector('pre'),b=this;const ok=()=>{"
    "b.textContent='Copied';setTimeout(()=>{b.textContent='Copy'},4000)};"
    "const old=()=>{const r=document.createRange();r.selectNodeContents(t);"
    "const s=getSelection();s.removeAllRanges();s.addRange(r);document.execCommand('copy');"
    "ok()};navigator.clipboard?navigator.clipboard.writeText(t.textContent).then(ok,old):old()"
)


def sheet() -> str:
    """Return the style sheet as an element; it applies below ``.kimi-panel`` alone.

    It also keeps the keys that are pressed in the panel from JupyterLab.
    """
    return f'<style onload="{html.escape(_KEYS, quote=True)}">{_CSS}</style>'


def copyable(name: str, text: str) -> str:
    """Return a text below its name, with a button that copies it, as HTML."""
    label = html.escape(name, quote=True)
    word = html.escape(translate("Copy"), quote=True)
    copy = _COPY.replace("'Copied'", repr(translate("Copied"))).replace("'Copy'", repr(word))
    return (
        f'<section class="kimi-copy" aria-label="{label}"><header><span>{label}</span>'
        f'<button type="button" aria-label="{word} {label}" '
        f'onclick="{html.escape(copy, quote=True)}">{word}</button></header>'
        f'<pre tabindex="0">{html.escape(text)}</pre></section>'
    )


def alert(text: str) -> str:
    """Return a mistake, which a screen reader reads at once, as HTML; "" for no text."""
    if not text:
        return ""
    return f'<div role="alert" class="kimi-alert">{html.escape(known_secrets.text(translate(text)))}</div>'


def validity(wrong: bool) -> str:
    """Return an element that tells a screen reader whether the value of its field is wrong.

    A widget has no trait for ``aria-invalid``; it stands with the field in a ``.kimi-field``.
    """
    call = (
        "this.closest('.kimi-field').querySelector('select,input')"
        f".setAttribute('aria-invalid','{str(wrong).lower()}')"
    )
    return f'<style onload="{html.escape(call, quote=True)}">/* loaded, so called */</style>'


def escaped(text: str, most: int | None = None) -> str:
    """Return at most so many characters of what an engine or a node said, as HTML."""
    return html.escape(show.visible(known_secrets.text(translate(text)), lines=False)[:most])


def escaped_lines(text: str) -> str:
    """Return a text of several lines without secrets, as HTML."""
    return html.escape(show.visible(known_secrets.text(translate(text))))


def waiting(label: str) -> str:
    """Return a progress bar whose end is not known, with its label, as HTML."""
    return f'<progress aria-label="{html.escape(translate(label), quote=True)}"></progress>'


def bar(label: str, done: int, total: int) -> str:
    """Return a progress bar with its label, as HTML."""
    return (
        f'<progress max="{max(total, 1)}" value="{done}" '
        f'aria-label="{html.escape(translate(label), quote=True)}"></progress>'
    )
