// The page's frame: which view is shown, the API key, and whether the service is there.

import { Api } from "./api.js";
import { fill, h } from "./dom.js";
import { FleetView } from "./fleet/view.js";
import { RequestView } from "./request/view.js";
import { TalkView } from "./talk/view.js";

const VIEWS = { talk: TalkView, fleet: FleetView, request: RequestView };
const ABOUT_AGAIN_MS = 2000;

/** What every view is given. A view has `show(argument)` and `hide()`, and makes its elements when it is shown first. */
class Frame {
  constructor() {
    this.api = new Api();
    this.about = null;
    this.views = {};
    this.shown = null;
  }

  async begin() {
    this.api.onUnauthorized = () => this.askForKey("The service does not know this key.");
    addEventListener("hashchange", () => this.route());
    this.about = await this.readAbout();
    document.title = `Baton: ${this.about.model}`;
    this.say(`${this.about.model}, Baton ${this.about.version}`);
    if (this.about.client === null) this.askForKey("");
    else this.route();
  }

  /** What the service says of itself, however long it is away. */
  async readAbout() {
    for (;;) {
      try {
        return await this.api.json("page/about");
      } catch (error) {
        this.say(error.message);
        await new Promise((resolve) => setTimeout(resolve, ABOUT_AGAIN_MS));
      }
    }
  }

  /** Show the view that the address names. */
  route() {
    if (!this.about || this.about.client === null) return;
    const [name, argument = ""] = location.hash.slice(1).split(/\/(.*)/s);
    const chosen = Object.hasOwn(VIEWS, name) ? name : "talk";
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${chosen}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (this.shown && this.shown !== chosen) {
      this.views[this.shown].hide();
      document.getElementById(this.shown).hidden = true;
    }
    this.views[chosen] ??= new VIEWS[chosen](document.getElementById(chosen), this);
    this.shown = chosen;
    document.getElementById(chosen).hidden = false;
    this.views[chosen].show(decoded(argument));
  }

  /** One line about the service, for everybody. */
  say(text) {
    document.getElementById("service").textContent = text;
  }

  /** Ask for an API key until the service knows it. */
  askForKey(problem) {
    const dialog = document.getElementById("key");
    if (dialog.open) return;
    const input = h("input", { type: "password", id: "key-input", autocomplete: "off", required: true });
    const note = h("p.problem", { role: "alert" }, problem);
    const submit = async (event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (/[^!-~]/.test(key)) {
        note.textContent = "A key has letters, digits and ASCII signs only.";
        return;
      }
      this.api.key = key;
      const about = await this.readAbout();
      if (about.client === null) {
        this.api.key = "";
        note.textContent = "The service does not know this key.";
        input.select();
        return;
      }
      this.api.keepKey();
      dialog.close();
      this.about = about;
      this.route();
    };
    fill(
      dialog,
      h("form", { on: { submit } },
        h("h2", { id: "key-title" }, "API key"),
        h("p", {}, "This service needs a key. It is kept in this tab only, until the tab is closed."),
        h("label", { for: "key-input" }, "Key"), input, note,
        h("button.primary", { type: "submit" }, "Continue")),
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.showModal();
    input.focus();
  }
}

/** A part of the address; one that was typed may not be encoded. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

new Frame().begin();
