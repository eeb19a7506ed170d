// Server-sent events over fetch: EventSource cannot send an API key, nor a body.

/** Splits a stream of text into events, as the HTML standard says. */
export class EventParser {
  #rest = "";
  #fields = { event: "", data: [], id: null };

  /**
   * The events that are complete with this piece of the stream.
   *
   * @param {string} text
   * @returns {{event: string, data: string, id: string|null}[]} `id` is null where an event has none.
   */
  feed(text) {
    const events = [];
    this.#rest += text;
    for (;;) {
      const match = /\r\n|\n|\r(?!$)/.exec(this.#rest); // a CR at the end may be half of a CRLF
      if (!match) return events;
      const line = this.#rest.slice(0, match.index);
      this.#rest = this.#rest.slice(match.index + match[0].length);
      const event = this.#take(line);
      if (event) events.push(event);
    }
  }

  #take(line) {
    const fields = this.#fields;
    if (line === "") {
      this.#fields = { event: "", data: [], id: null };
      return fields.data.length ? { event: fields.event || "message", data: fields.data.join("\n"), id: fields.id } : null;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") fields.event = value;
    else if (name === "data") fields.data.push(value);
    else if (name === "id") fields.id = value;
    return null;
  }
}

/**
 * The events of an answer, as they come.
 *
 * @param {Response} response
 * @param {function(): void} [heard] is called whenever anything comes, comments too.
 */
export async function* eventsOf(response, heard = () => {}) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      yield* parser.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
