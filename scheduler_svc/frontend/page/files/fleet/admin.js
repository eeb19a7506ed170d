// What an admin can do to the fleet: drain one executor, or roll out all. Both ask first, and say what will happen.

import { fill, h } from "../dom.js";
import { countOf } from "./format.js";
import { KeyedList, setText } from "./keyed.js";
import { Rollout } from "./rollout.js";

const HAND_OVER = "Hand its sequences over now: each goes on elsewhere after a short pause.";
const FINISH = "Let its sequences end there: it takes nothing new and leaves after the last.";

/** The buttons' dialogs, and the rollout that runs in this page. */
export class Admin {
  #rollout = null;
  #finish = false;
  #isSending = false;

  /** `onChange` is called when a rollout begins or ends. */
  constructor(api, onChange) {
    Object.assign(this, { api, onChange });
    this.note = h("p.note", { role: "status", "data-testid": "drain-note" });
    this.dialog = h("dialog", { "aria-labelledby": "admin-title" });
    const click = () => this.askRollout();
    this.button = h("button", { type: "button", disabled: true, on: { click } }, "Roll out …"); // until there is a report
    this.stopButton = h("button", { type: "button", on: { click: () => this.#stop() } }, "Stop");
    this.progress = h("p", { role: "status" });
    const log = h("ol", {});
    this.log = new KeyedList(log, (line) => line, (line) => ({ node: h("li", {}, line) }), () => {});
    this.panel = h("section.rollout", { "aria-label": "Rollout", hidden: true, "data-testid": "rollout" },
      this.progress, log, this.stopButton);
  }

  get isRunning() {
    return this.#rollout !== null && !this.#rollout.isDone;
  }

  /** What has been reported last. */
  see(report, isThere, nowS) {
    this.report = report;
    this.button.disabled = this.isRunning || !report?.executors.some(({ state }) => state === "ready");
    if (!this.isRunning) return;
    const epoch = this.#rollout.see(isThere ? report : null, nowS);
    if (epoch && !this.#isSending) this.#sendForRollout(epoch);
    this.#show();
  }

  askDrain(epoch) {
    const executor = this.report.executors.find((one) => one.epoch === epoch);
    if (!executor) return;
    const others = this.report.executors.filter((one) => one !== executor && one.state === "ready").length;
    this.#ask(`Drain ${executor.executor}?`, [
      h("p", {}, `${executor.executor} (epoch ${epoch}) is ${executor.state} and has ${countOf(executor.running, "running sequence")}. ` +
        "Its process ends; whether another one is started is its supervisor's business."),
      others ? null : h("p.problem", {}, "No other executor is ready: sequences wait until one joins."),
    ], "Drain", (finish) => this.#drain(executor, finish));
  }

  askRollout() {
    const ready = this.report.executors.filter(({ state }) => state === "ready");
    const names = ready.map(({ executor, epoch, running }) =>
      h("li", {}, `${executor} (epoch ${epoch}), ${countOf(running, "running sequence")}`));
    const standby = ready.some((one) => one.has_standby) ? h("li", {}, "the standby that waits, which is the first successor") : null;
    this.#ask("Roll out the whole fleet?", [
      h("p", {}, "These are drained one after the other:"), h("ol", {}, ...names, standby),
      h("p", {}, `After each the rollout waits until ${countOf(ready.length, "executor")} are ready again. Their supervisor has to ` +
        "start the successors; if none is ready within 120 s, the rollout stops."),
      h("p", {}, "The rollout runs in this page. Closing the tab stops it after the executor whose turn it is."),
    ], "Roll out", (finish) => this.#begin(finish));
  }

  #ask(title, content, verb, onYes) {
    const choice = (value, text) => h("label.choice", {},
      h("input", { type: "radio", name: "finish", value, checked: value === "" }), h("span", {}, text));
    const submit = (event) => {
      event.preventDefault();
      this.dialog.close();
      onYes(new FormData(event.target).get("finish") === "yes");
    };
    const cancel = h("button", { type: "button", autofocus: true, on: { click: () => this.dialog.close() } }, "Cancel");
    fill(this.dialog, h("form", { on: { submit } }, h("h2", { id: "admin-title" }, title), ...content,
      h("fieldset", {}, h("legend", {}, "What runs there"), choice("", HAND_OVER), choice("yes", FINISH)),
      h("div.buttons", {}, cancel, h("button.primary", { type: "submit" }, verb))));
    this.dialog.showModal();
  }

  #send(epoch, finish) {
    return this.api.json(`admin/executors/${epoch}/drain`, { method: "POST", body: { finish } });
  }

  async #drain({ executor, epoch }, finish) {
    const say = (text) => setText(this.note, `${executor} (epoch ${epoch}) ${text}`);
    say("is asked to leave …");
    try {
      await this.#send(epoch, finish);
      say(finish ? "leaves when its sequences have ended." : "was asked to leave.");
    } catch (error) {
      say(`was not drained: ${error.message}`);
    }
  }

  #begin(finish) {
    this.#rollout = new Rollout(this.report, Date.now() / 1000);
    this.#finish = finish;
    addEventListener("beforeunload", warn);
    this.panel.hidden = false;
    this.see(this.report, true, Date.now() / 1000);
    this.onChange();
  }

  #stop() {
    this.#rollout.stop("it was told to stop");
    this.#show();
  }

  /** A drain that was not answered is sent again with the next report. */
  async #sendForRollout(epoch) {
    this.#isSending = true;
    try {
      await this.#send(epoch, this.#finish);
      this.#rollout.drainAccepted(epoch);
    } catch (error) {
      if (!error.mayPass) this.#rollout.drainRefused(error.message);
    }
    this.#isSending = false;
    this.#show();
  }

  #show() {
    setText(this.progress, this.#rollout.progress);
    this.log.show(this.#rollout.log);
    this.stopButton.hidden = !this.isRunning;
    if (this.isRunning) return;
    removeEventListener("beforeunload", warn);
    this.onChange();
  }
}

function warn(event) {
  event.preventDefault();
}
