// JSON with line breaks and indentation, while it comes. Nothing is parsed, so numbers and strings stay as they were.

const STEP = "  ";

/** Indents a text of JSON piece by piece. What it has given is never changed by what comes later. */
export class Indenter {
  #depth = 0;
  #inString = false;
  #escaped = false;
  #breaks = false; // a bracket or a comma stands before, so that what comes next begins a line, unless it is the end

  /** The next piece of the text, indented. */
  feed(piece) {
    let shown = "";
    for (const character of piece) shown += this.#inString ? this.#ofString(character) : this.#outside(character);
    return shown;
  }

  #ofString(character) {
    if (this.#escaped) this.#escaped = false;
    else if (character === "\\") this.#escaped = true;
    else if (character === '"') this.#inString = false;
    return character;
  }

  #outside(character) {
    if (" \t\r\n".includes(character)) return "";
    if (character === "}" || character === "]") {
      this.#depth = Math.max(0, this.#depth - 1);
      const lead = this.#breaks ? "" : this.#newLine();
      this.#breaks = false;
      return lead + character;
    }
    const lead = this.#breaks ? this.#newLine() : "";
    this.#breaks = character === ",";
    if (character === "{" || character === "[") {
      this.#depth += 1;
      this.#breaks = true;
    } else if (character === '"') {
      this.#inString = true;
    } else if (character === ":") {
      return `${lead}: `;
    }
    return lead + character;
  }

  #newLine() {
    return `\n${STEP.repeat(this.#depth)}`;
  }
}
