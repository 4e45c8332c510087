"""Scripts that a browser runs on a page: can each text be read, does everything have room?

Each ends in a JavaScript function of an element, or of a list of elements; `faults` calls all
that a cell must pass.
"""

from __future__ import annotations

from typing import Any

# The contrast of an element's text with what is behind it (WCAG 2.2, 1.4.3). A text of an SVG
# stands on the last shape before it that is filled where the text has its middle.
CONTRAST = """element => {
  const rgb = colour => colour.match(/[\\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
  const alpha = colour => rgb(colour)[3] ?? 1;
  const over = (front, back) => {
    const part = alpha(front);
    return `rgb(${[0, 1, 2].map(at => rgb(front)[at] * part + rgb(back)[at] * (1 - part))})`;
  };
  const bright = colour => rgb(colour).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const page = at => {
    const found = [];
    for (; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (!(at instanceof SVGElement)) found.push(style.backgroundColor);
      if (alpha(style.backgroundColor) === 1 && !(at instanceof SVGElement)) break;
    }
    return found.reverse().reduce((back, front) => over(front, back), 'rgb(255, 255, 255)');
  };
  let behind = page(element);
  const svg = element.closest('svg');
  if (svg) {
    const box = element.getBoundingClientRect();
    const middle = new DOMPoint(box.x + box.width / 2, box.y + box.height / 2);
    for (const shape of svg.querySelectorAll('path,rect,circle,ellipse,polygon')) {
      if (!(shape.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
      const matrix = shape.getScreenCTM();
      if (!matrix || shape.closest('defs,clipPath,mask,pattern,marker')) continue;
      const style = getComputedStyle(shape);
      if (!style.fill.startsWith('rgb')) continue;
      if (!shape.isPointInFill(middle.matrixTransform(matrix.inverse()))) continue;
      const fill = rgb(style.fill), part = (fill[3] ?? 1) * style.fillOpacity * style.opacity;
      behind = over(`rgba(${fill.slice(0, 3)}, ${part})`, behind);
    }
  }
  const style = getComputedStyle(element);
  const ink = over(svg ? style.fill : style.color, behind);
  const both = [ink, behind].map(bright).sort((a, b) => b - a);
  return (both[0] + 0.05) / (both[1] + 0.05);
}"""
# What is wider than the page and scrolls in no frame of its own.
WIDER = """() => [...document.querySelectorAll('body *')].filter(element => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false;
  for (let at = element.parentElement; at && at !== document.body; at = at.parentElement)
    if (getComputedStyle(at).overflowX !== 'visible') return false;
  return true;
}).map(element => `${element.tagName} ${element.textContent.slice(0, 60)}`)"""

# Tables of which a part is out of sight until a person scrolls sideways.
SCROLLED = """frames => frames.flatMap(frame => [...frame.querySelectorAll('.scroll')])
  .filter(one => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
  .map(one => `a table of ${one.scrollWidth} px in ${one.clientWidth}: ${one.textContent.slice(0, 60)}`)"""

_FAULTS = """frames => {
  const contrast = CONTRAST;
  const faults = new Map();
  const note = (kind, text) => faults.set(`${kind}: ${text.trim().slice(0, 90)}`, true);
  const hides = style => /hidden|clip/.test(style.overflowX + style.overflowY);
  const scrolls = style => /auto|scroll/.test(style.overflowX);
  for (const frame of frames) {
    const edge = frame.getBoundingClientRect();
    // A frame that scrolls keeps what is wide inside of it.
    for (const element of frame.querySelectorAll('*')) {
      const box = element.getBoundingClientRect();
      if (!element.checkVisibility() || !box.width || element.closest('svg') !== null) continue;
      if (box.right <= edge.right + 1 && box.left >= edge.left - 1) continue;
      let at = element.parentElement;
      while (at !== frame && !scrolls(getComputedStyle(at))) at = at.parentElement;
      if (at === frame && !scrolls(getComputedStyle(frame))) note('wider', element.textContent);
    }
    for (const picture of frame.querySelectorAll('img, svg')) {
      const named = picture.closest('[role=img][aria-label]:not([aria-label=""])');
      if (!picture.alt && !named && !picture.closest('[aria-hidden=true]'))
        note('no words for a picture', picture.outerHTML);
    }
    const texts = document.createTreeWalker(frame, NodeFilter.SHOW_TEXT), drawn = [];
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      const element = text.parentElement;
      if (!text.data.trim() || !element.checkVisibility({ checkVisibilityCSS: true })) continue;
      if (element.closest('style, script, option, [disabled]')) continue;
      const range = document.createRange();
      range.selectNodeContents(text);
      const boxes = [...range.getClientRects()].filter(box => box.width > 1);
      if (!boxes.length) continue;
      if (contrast(element) < 4.5) note(`contrast ${contrast(element).toFixed(1)}`, text.data);
      const svg = element.closest('svg');
      if (svg) drawn.push([svg, element, boxes[0], text.data]);
      for (let at = element; at !== frame; at = at.parentElement) {
        const style = getComputedStyle(at), room = at.getBoundingClientRect();
        if (scrolls(style)) break;
        if (hides(style) && style.display !== 'inline' && !(at !== svg && at.closest('svg')) &&
            boxes.some(box => box.right > room.right + 2 || box.left < room.left - 2
              || box.bottom > room.bottom + 4 || box.top < room.top - 4)) note('cut', text.data);
      }
    }
    for (const [at, [svg, element, one, said]] of drawn.entries())
      for (const [other, next, two, told] of drawn.slice(at + 1)) {
        if (other !== svg || next === element) continue;
        const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        if (wide > 2 && high > Math.min(one.height, two.height) / 3)
          note('overlap', `${said} / ${told}`);
      }
    const brush = document.createElement('canvas').getContext('2d');
    for (const field of frame.querySelectorAll('input:not([type=checkbox]), select')) {
      if (!field.checkVisibility()) continue;
      const style = getComputedStyle(field), select = field.tagName === 'SELECT';
      brush.font = style.font;
      const said = (select ? field.selectedOptions[0]?.text ?? '' : field.value)
        .replaceAll('\u00a0', ' ');  // ipywidgets' lists have no other spaces
      const taken = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight) + 16 * select;
      // A list that has the whole row can have no more: it ends in an ellipsis, and opens whole.
      const whole = field.closest('.kimi-wide') && style.textOverflow === 'ellipsis';
      if (brush.measureText(said).width + taken > field.clientWidth && !whole)
        note('cut field', said);
    }
  }
  return [...faults.keys()];
}""".replace("CONTRAST", CONTRAST)


def faults(frames: Any) -> list[str]:
    """Return what a person could not read in frames (a locator), one line each.

    What is wider than its frame and scrolls nowhere, pictures without words, contrast below 4.5,
    text that is cut off, texts of a picture that overlap, values that their field cuts.
    """
    return frames.evaluate_all(_FAULTS)
