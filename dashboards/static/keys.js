/* A figure's points by keyboard: left and right go along the horizontal axis, Enter keeps a point, Space selects it. */
"use strict";

/* Whether a trace has points to walk along. */
Craft.walks = trace => trace.mode === "markers" && Boolean(trace.customdata);

Craft.Keys = class {
  /* `figure` is a Craft.Figure; its `on` has keep(id) besides what the mouse needs. */
  constructor(figure) {
    this.figure = figure;
    this.at = null;
    const plot = figure.holder;
    plot.tabIndex = 0;
    plot.addEventListener("keydown", event => { if (event.target === plot) this.press(event); });
    plot.addEventListener("blur", () => this.figure.on.leave());
  }

  /* Ids of the points in sight, each once, from left to right. */
  order() {
    const places = new Map();
    for (const [, id] of this.figure.points) {
      const place = places.has(id) ? null : this.figure.position(id, this.figure.holder._fullLayout);
      if (place) places.set(id, place);
    }
    return [...places].sort(([, a], [, b]) => a[0] - b[0] || a[1] - b[1]);
  }

  press(event) {
    const {on} = this.figure;
    const step = {ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity}[event.key];
    if (step === undefined && !(["Enter", " "].includes(event.key) && this.at !== null)) return;
    event.preventDefault();
    if (step !== undefined) this.go(step);
    else if (event.key === "Enter") on.keep(this.at);
    else {
      const chosen = new Set(this.figure.selected || []);
      if (!chosen.delete(this.at)) chosen.add(this.at);
      on.select(chosen.size ? chosen : null);
    }
  }

  go(step) {
    const points = this.order();
    if (!points.length) return;
    const before = points.findIndex(([id]) => id === this.at);
    const next = before < 0 && Number.isFinite(step) ? (step > 0 ? 0 : points.length - 1) : before + step;
    const [id, [x, y]] = points[Math.max(0, Math.min(points.length - 1, next))];
    this.at = id;
    const box = this.figure.holder.getBoundingClientRect();
    this.figure.on.hover(id, {clientX: box.left + x, clientY: box.top + y});
  }
};
