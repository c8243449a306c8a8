"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const DASHES = [[], [8, 4], [8, 3, 2, 3], [2, 3]];
  const GREY = "#999999";
  const state = {
    protocol: data.protocols[0].key,
    axis: data.axes[0].key,
    smoothing: 0,
    hidden: new Set(), // experiments
    unseen: new Set(), // seeds
    seeds: false,
    published: true,
  };

  const element = (name, parent, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  };
  const show = (value) => value.toLocaleString("en", { maximumSignificantDigits: 5 });

  // A moving average over 2k + 1 points; ends and gaps take what there is.
  const smooth = (y, k) =>
    k === 0 ? y : y.map((value, i) => {
      if (value === null) return null;
      const near = y.slice(Math.max(0, i - k), i + k + 1).filter((v) => v !== null);
      return near.reduce((a, b) => a + b, 0) / near.length;
    });

  const visible = (entry) => {
    if (entry.kind === "published") return state.published;
    if (state.hidden.has(entry.experiment)) return false;
    if (entry.kind === "seed") return state.seeds && !state.unseen.has(entry.seed);
    if (entry.kind === "unfinished") return !state.unseen.has(entry.seed);
    return true;
  };

  const style = (entry) => {
    if (entry.kind === "published") return { stroke: GREY, width: 3 };
    const { color, dash } = data.experiments[entry.experiment];
    switch (entry.kind) {
      case "mean": return { stroke: color, width: 2, dash: DASHES[dash] };
      case "seed": return { stroke: color + "88", width: 1 };
      case "unfinished": return { stroke: color, width: 1.5, dash: [1, 4] };
      default: return { stroke: "transparent", width: 0 }; // ends of an interval
    }
  };

  const name = (entry) => {
    if (entry.kind === "published") return entry.label;
    const experiment = data.experiments[entry.experiment].name;
    if (entry.kind === "mean") return `${experiment} (n = ${entry.n})`;
    const unfinished = entry.kind === "unfinished" ? " (unfinished)" : "";
    return `${experiment}, seed ${entry.seed}${unfinished}`;
  };

  // What the pointer is over, as text beside it.
  const tooltip = (axisTitle, lines) => {
    let box;
    return {
      hooks: {
        init: (u) => { box = element("div", u.over); box.className = "tip"; box.hidden = true; },
        setCursor: (u) => {
          const { idx, left, top } = u.cursor;
          const rows = idx === null || idx === undefined ? [] :
            lines.flatMap((line, i) => {
              const value = u.data[i + 1][idx];
              if (value === null || value === undefined || !line.named) return [];
              const ends = line.band ? line.band.map((j) => u.data[j][idx]) : [];
              const interval = ends.length && ends.every((end) => end !== null) ?
                ` [${ends.map(show).join(", ")}]` : "";
              return [{ value, color: line.color, text: `${line.label}: ${show(value)}${interval}` }];
            });
          box.hidden = rows.length === 0 || left < 0;
          if (box.hidden) return;
          box.replaceChildren();
          element("div", box, `${axisTitle}: ${show(u.data[0][idx])}`);
          for (const row of rows.sort((a, b) => b.value - a.value).slice(0, 12)) {
            const line = element("div", box);
            const swatch = element("span", line);
            swatch.className = "swatch";
            swatch.style.borderColor = row.color;
            line.append(row.text);
          }
          if (rows.length > 12) element("div", box, `and ${rows.length - 12} more`);
          const right = left > u.over.clientWidth / 2;
          box.style.left = right ? "" : `${left + 12}px`;
          box.style.right = right ? `${u.over.clientWidth - left + 12}px` : "";
          box.style.top = `${Math.min(top, u.over.clientHeight / 2)}px`;
        },
      },
    };
  };

  const draw = (chart) => {
    chart.plot?.destroy();
    chart.place.replaceChildren();
    const { x, series } = chart.task.curves[state.protocol][state.axis];
    const shown = series.filter(visible);
    if (x.length === 0 || shown.length === 0) {
      chart.plot = undefined;
      element("p", chart.place, "nothing to show").className = "empty";
      return;
    }
    const lines = [], bands = [], columns = [x];
    for (const entry of shown) {
      const index = columns.push(smooth(entry.y, state.smoothing)) - 1;
      const look = style(entry);
      const line = {
        ...look, label: name(entry), color: look.stroke, points: { show: x.length < 30 },
        named: !["low", "high"].includes(entry.kind), scale: "y",
      };
      if (!line.named) Object.assign(line, { points: { show: false }, auto: false }); // no part in the scale
      if (entry.kind === "high") // its lower end has just been added
        bands.push({ series: [index, index - 1], fill: data.experiments[entry.experiment].color + "2a" });
      if (entry.kind === "mean" && entry.n > 1) line.band = [index - 2, index - 1];
      lines.push(line);
    }
    const axisTitle = data.axes.find((axis) => axis.key === state.axis).title;
    chart.plot = new uPlot({
      width: chart.place.clientWidth,
      height: 320,
      scales: { x: { time: false } },
      legend: { show: false },
      cursor: { points: { size: 6 } },
      axes: [{ label: axisTitle, size: 45 }, { label: "return", size: 75 }],
      series: [{}, ...lines],
      bands,
      plugins: [tooltip(axisTitle, lines)],
    }, columns, chart.place);
  };

  // Only charts near the window are drawn: a report may have hundreds.
  const charts = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.get(target);
      chart.near = isIntersecting;
      if (isIntersecting && chart.stale) { chart.stale = false; draw(chart); }
    }
  }, { rootMargin: "400px" });
  const redraw = () => {
    for (const chart of charts.values()) {
      chart.stale = !chart.near;
      if (chart.near) draw(chart);
    }
  };
  for (const task of data.tasks) {
    const box = element("div", document.getElementById("charts"));
    box.className = "chart";
    element("h3", box, task.name);
    charts.set(box, { task, place: element("div", box), stale: true, near: false });
    watcher.observe(box);
  }
  window.addEventListener("resize", redraw);

  const choose = (id, options, key) => {
    const select = document.getElementById(id);
    for (const option of options) element("option", select, option.title).value = option.key;
    select.addEventListener("change", () => { state[key] = select.value; redraw(); });
  };
  choose("protocol", data.protocols, "protocol");
  choose("axis", data.axes, "axis");

  const tick = (parent, text, hidden, key, color) => {
    const label = element("label", parent);
    const box = element("input", label);
    box.type = "checkbox";
    box.checked = true;
    if (color) {
      const swatch = element("span", label);
      swatch.className = "swatch";
      swatch.style.borderColor = color;
    }
    label.append(text);
    box.addEventListener("change", () => { hidden[box.checked ? "delete" : "add"](key); redraw(); });
  };
  data.experiments.forEach(({ name: text, color }, index) =>
    tick(document.getElementById("experiments"), text, state.hidden, index, color));
  const all = data.tasks.flatMap((task) => Object.values(task.curves).flatMap((axes) =>
    Object.values(axes).flatMap(({ series }) => series.map(({ seed }) => seed))));
  const seeds = [...new Set(all.filter((seed) => seed !== undefined))];
  for (const seed of seeds.sort((a, b) => a - b || a.localeCompare(b)))
    tick(document.getElementById("seeds"), seed, state.unseen, seed);

  const toggle = (id, key) => {
    const box = document.getElementById(id);
    box.addEventListener("change", () => { state[key] = box.checked; redraw(); });
  };
  toggle("seeds-shown", "seeds");
  toggle("published", "published");

  const slider = document.getElementById("smoothing");
  const said = document.getElementById("window");
  const smoothing = () => {
    state.smoothing = Number(slider.value);
    said.textContent = state.smoothing ? `mean of ${2 * state.smoothing + 1} points` : "off";
  };
  slider.addEventListener("input", () => { smoothing(); redraw(); });
  smoothing();
})();
