// Elements that are kept while their data changes: nothing flickers, and what has the focus keeps it.

/** Set a text only if it is another. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The children of an element, one for each item. */
export class KeyedList {
  /**
   * @param {Element} parent has no other children.
   * @param {function(any): string} keyOf
   * @param {function(any): {node: Element}} make what an item is shown with.
   * @param {function({node: Element}, any): void} update shows what an item has become.
   * @param {function({node: Element}): void} [end] is called before an element is removed.
   */
  constructor(parent, keyOf, make, update, end = () => {}) {
    Object.assign(this, { parent, keyOf, make, update, end });
    this.entries = new Map();
  }

  /** Show these items, in this order. */
  show(items) {
    const keys = new Set(items.map(this.keyOf));
    for (const [key, entry] of this.entries) {
      if (keys.has(key)) continue;
      this.end(entry);
      entry.node.remove();
      this.entries.delete(key);
    }
    let next = this.parent.firstElementChild;
    for (const item of items) {
      const key = this.keyOf(item);
      let entry = this.entries.get(key);
      if (!entry) this.entries.set(key, (entry = this.make(item)));
      this.update(entry, item);
      if (entry.node === next) next = next.nextElementSibling;
      else this.#place(entry.node, next);
    }
  }

  #place(node, next) {
    const focused = node.contains(document.activeElement) ? document.activeElement : null;
    this.parent.insertBefore(node, next);
    focused?.focus({ preventScroll: true }); // an element that is moved loses it
  }
}
