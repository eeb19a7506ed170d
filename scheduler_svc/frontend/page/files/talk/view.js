import { fill, h } from "../dom.js";

export class TalkView {
  constructor(root, frame) {
    this.root = root;
    this.frame = frame;
    fill(root, h("p", {}, "Talk"));
  }

  show(argument) {}

  hide() {}
}
