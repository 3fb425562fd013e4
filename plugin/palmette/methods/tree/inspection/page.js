"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const svg = at("tree"), scroll = at("scroll"), panel = at("panel"), box = at("query");

  // -- the tree as data ------------------------------------------------------------------------------------
  const nodes = new Map();
  for (const [name, share, documents, decided, words] of data.nodes) nodes.set(name, { name, share, documents, decided, words, level: name.length });
  const children = (node) => [nodes.get(node.name + "L"), nodes.get(node.name + "R")].filter(Boolean);
  const parent = (node) => (node.name ? nodes.get(node.name.slice(0, -1)) : null);
  const deepest = Math.max(...[...nodes.values()].map((node) => node.level));
  const listed = data.listed.map(([id, title, text, leaf, reached]) => ({ id, title, text, leaf, reached }));
  const routes = data.routes.slice();
  const readFound = (route) => { route.found = route.found.map(([id, title, text, leaf, score]) => ({ id, title, text, leaf, score })); };
  const reach = (document_, node) => (node.level ? document_.reached[node.level - 1] : 1);
  for (const route of routes) readFound(route);
  const byLeaf = new Map();
  for (const d of listed) byLeaf.set(d.leaf, [...(byLeaf.get(d.leaf) || []), d]);
  const inside = (node) =>
    (children(node).length ? listed.filter((d) => d.leaf.startsWith(node.name)) : (byLeaf.get(node.name) || []).slice())
      .sort((a, b) => (node.level ? reach(b, node) - reach(a, node) : b.reached.at(-1) - a.reached.at(-1)));
  const number = (n) => n.toLocaleString("en");
  const percent = (p) => (p >= 0.0995 ? Math.round(100 * p) + " %" : p >= 0.001 ? (100 * p).toFixed(1) + " %" : "< 0.1 %");
  const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;

  // -- what is shown ---------------------------------------------------------------------------------------
  const START = Math.min(4, deepest);
  const state = { open: new Set(), level: START, selected: nodes.get(""), route: null, zoom: 1 };
  const isOpen = (node) => state.open.has(node.name) && children(node).length > 0;
  const visible = (node) => { for (let above = parent(node); above; above = parent(above)) if (!isOpen(above)) return false; return true; };
  const openTo = (level) => {
    state.level = level;
    state.open = new Set([...nodes.values()].filter((node) => node.level < level).map((node) => node.name));
  };
  const reveal = (node) => {
    for (let above = parent(node); above; above = parent(above)) state.open.add(above.name);
  };
  const isWay = (node) => state.route !== null && state.route.path.startsWith(node.name);

  const pen = document.createElement("canvas").getContext("2d");
  const family = getComputedStyle(document.body).fontFamily;
  const measured = (text, size, weight = 400) => {
    const font = `${weight} ${size}px ${family}`;
    if (pen.font !== font) pen.font = font;
    return pen.measureText(text).width;
  };
  const fitted = (text, width, size) => {
    if (measured(text, size) <= width) return text;
    const letters = [...text].slice(0, 120);
    while (letters.length > 1 && measured(letters.join("") + "…", size) > width) letters.pop();
    return letters.join("").trimEnd() + "…";
  };
  /** A node's words, those first that its parent's label does not show already. */
  const telling = (node) => {
    const words = node.words.map(([word]) => word), above = parent(node);
    const shown = new Set(above ? above.words.slice(0, 3).map(([word]) => word) : []);
    return [...words.filter((word) => !shown.has(word)), ...words.filter((word) => shown.has(word))];
  };
  /** As many of them as fit, or the start of its most probable document. */
  const labels = new Map();
  const label = (node, width, size) => {
    const key = `${node.name} ${Math.round(width)} ${size}`;
    if (!labels.has(key)) labels.set(key, worded(node, width, size));
    return labels.get(key);
  };
  const worded = (node, width, size) => {
    if (!node.name) return { text: width < 80 ? "all" : "all documents" };
    const words = telling(node);
    if (words.length) {
      let count = words.length;
      while (count > 1 && measured(words.slice(0, count).join(" · "), size) > width) count--;
      return { text: fitted(words.slice(0, count).join(" · "), width, size) };
    }
    if (!node.documents) return { text: "empty", quoted: true };
    const first = inside(node)[0];
    return { text: first ? fitted(first.title || first.text, width, size) : node.name, quoted: true };
  };

  // -- drawing ---------------------------------------------------------------------------------------------
  const NS = "http://www.w3.org/2000/svg";
  const draw = (tag, attributes, ...inner) => {
    const made = document.createElementNS(NS, tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inner);
    return made;
  };
  const TOP = 62, TRUNK = 20, WORDS = 300;
  const between = (low, value, high) => Math.max(low, Math.min(high, value));
  let LEFT = 124, COLUMN = 160, ROW = 30;
  /** Fill the view with the levels that are open everywhere. */
  const measure = () => {
    LEFT = scroll.offsetWidth < 600 ? 44 : 124;
    COLUMN = between(scroll.offsetWidth < 600 ? 108 : 128, (scroll.offsetWidth - LEFT - WORDS - 60) / state.level, 190);
    ROW = between(29, (scroll.offsetHeight - TOP - 24) / 2 ** state.level, 42);
  };
  const thick = (node) => Math.max(1.25, TRUNK * Math.sqrt(node.documents / data.documents));
  let placed = new Map();

  const layout = () => {
    measure();
    placed = new Map();
    let row = 0;
    const place = (node) => {
      const spot = { node, x: LEFT + node.level * COLUMN, y: 0, kids: [] };
      placed.set(node.name, spot);
      spot.kids = isOpen(node) ? children(node).map(place) : [];
      spot.y = spot.kids.length ? (spot.kids[0].y + spot.kids.at(-1).y) / 2 : TOP + ROW * row++;
      return spot;
    };
    place(nodes.get(""));
    const wide = Math.max(...[...placed.values()].map((spot) => spot.x)) + WORDS + 90;
    return { wide, high: TOP + ROW * row + 10 };
  };

  /** Out of the parent's trunk, up or down, then level: an espalier's arm. */
  const arm = (spot) => {
    const above = placed.get(spot.node.name.slice(0, -1));
    if (!spot.node.name) return `M0 ${spot.y}H${spot.x}`;
    const way = Math.sign(spot.y - above.y), bend = Math.min(14, Math.abs(spot.y - above.y));
    return `M${above.x} ${above.y}V${spot.y - way * bend}Q${above.x} ${spot.y} ${above.x + bend} ${spot.y}H${spot.x}`;
  };

  const render = () => {
    const held = svg.contains(document.activeElement);
    while (!visible(state.focus)) state.focus = parent(state.focus); // what holds the focus may have been folded away
    const { wide, high } = layout();
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    svg.setAttribute("width", Math.round(wide * state.zoom));
    svg.setAttribute("height", Math.round(high * state.zoom));
    const spots = [...placed.values()];
    const arms = draw("g", { "aria-hidden": "true" }), lights = draw("g", { "aria-hidden": "true" });
    for (const spot of spots) {
      arms.append(draw("path", { class: "branch", d: arm(spot), "stroke-width": thick(spot.node) }));
      const share = state.route ? state.route.reached[spot.node.name] || 0 : 0;
      const way = isWay(spot.node);
      if (share > 0.001 || way)
        lights.append(draw("path", { class: "lit", d: arm(spot), "stroke-width": Math.max(way ? 2.5 : 1.25, thick(spot.node)), "stroke-opacity": way ? 1 : (0.7 * Math.sqrt(share)).toFixed(3) }));
    }
    svg.replaceChildren(arms, lights, ...spots.map(item));
    at("levels").textContent = `${plural(state.level, "level")}`;
    at("zoom").textContent = Math.round(100 * state.zoom) + " %";
    at("fewer").disabled = state.level <= 1;
    at("more").disabled = state.level >= deepest;
    if (held) focusOn(state.focus);
  };

  const item = (spot) => {
    const { node, x, y, kids } = spot;
    const inner = kids.length > 0, some = children(node).length > 0;
    const share = state.route && node.name ? state.route.reached[node.name] || 0 : 0;
    const size = inner ? 12 : 13, room = inner ? (node.name ? COLUMN - 34 : LEFT - 20) : WORDS;
    const { text, quoted } = label(node, room, size);
    const width = measured(text, size, node === state.selected ? 650 : 400);
    const siblings = node.name ? children(parent(node)) : [node];
    const spoken = [node.name ? `${node.name.length > 1 ? node.name : node.name === "L" ? "left" : "right"}: ${text}` : text, plural(node.documents, "document")];
    const here = state.route ? state.route.found.filter((hit) => hit.leaf.startsWith(node.name)).length : 0;
    if (here && node.name) spoken.push(`${plural(here, "document")} found`);
    if (share) spoken.push(`the query reaches it with ${percent(share)}`);
    const group = draw("g", {
      role: "treeitem", "data-node": node.name, class: some && !inner ? "closed" : "",
      tabindex: node === state.focus ? 0 : -1, "aria-level": node.level + 1, "aria-label": spoken.join(", "),
      "aria-setsize": siblings.length, "aria-posinset": siblings.indexOf(node) + 1, "aria-selected": node === state.selected,
    });
    if (some) group.setAttribute("aria-expanded", inner);
    const anchor = !node.name ? "start" : inner ? "end" : "start";
    const tx = !node.name ? 12 : inner ? x - 12 : x + 13, ty = inner || !node.name ? y - thick(node) / 2 - 6 : y + 4.5;
    const left = anchor === "end" ? tx - width - 5 : tx - 5;
    group.append(
      draw("rect", { class: "back", x: left, y: ty - 14, width: width + 10, height: 19, rx: 5 }),
      draw("rect", { class: "hit", x: left, y: ty - 15, width: width + (inner ? 10 : 80), height: 24 }),
      draw("text", { class: `label${inner ? " inner" : ""}${quoted ? " quoted" : ""}`, x: tx, y: ty, "text-anchor": anchor }, text),
    );
    let end = tx + width + 10;
    const append = (kind, text) => {
      group.append(draw("text", { class: kind, x: end, y: ty }, text));
      end += measured(text, 12.5) + 9;
    };
    if (!inner) append("count", number(node.documents));
    if (share >= 0.02 || (isWay(node) && node.name)) {
      if (inner) group.append(draw("text", { class: "share", x: x - 12, y: y + thick(node) / 2 + 13, "text-anchor": "end" }, percent(share)));
      else append("share", percent(share));
    }
    if (!inner && here) append("share", `${"★".repeat(here)}`);
    const knob = draw("g", { class: "toggle" }, draw("circle", { class: "hit", cx: x, cy: y, r: 13 }));
    if (some) {
      knob.append(draw("circle", { class: "knob", cx: x, cy: y, r: 6 }));
      if (!inner) knob.append(draw("path", { class: "sign", d: `M${x - 3} ${y}h6M${x} ${y - 3}v6` }));
    } else knob.append(draw("circle", { class: node.documents ? "bud" : "bare", cx: x, cy: y, r: node.documents ? 4.5 : 3 }));
    group.append(knob, draw("circle", { class: "ring", cx: x, cy: y, r: 10.5 }));
    return group;
  };

  const elementOf = (node) => svg.querySelector(`[data-node="${node.name}"]`);
  const focusOn = (node) => {
    state.focus = node;
    for (const other of svg.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", -1);
    const element = elementOf(node);
    element.setAttribute("tabindex", 0);
    element.focus({ preventScroll: true });
    bringInto(node);
  };
  const bringInto = (node) => {
    const spot = placed.get(node.name), z = state.zoom, margin = 40;
    const near = (from, size, low, high) => (low < from + margin ? low - margin : high > from + size - margin ? Math.min(high - size + margin, low - margin) : from);
    scroll.scrollLeft = near(scroll.scrollLeft, scroll.clientWidth, (spot.x - COLUMN) * z, (spot.x + (isOpen(node) ? 20 : 220)) * z);
    scroll.scrollTop = near(scroll.scrollTop, scroll.clientHeight, (spot.y - ROW) * z, (spot.y + ROW) * z);
  };
  /** Change what is open while a node stays where it is on the screen. */
  const around = (node, change) => {
    const before = placed.get(node.name);
    const screen = before ? [before.x * state.zoom - scroll.scrollLeft, before.y * state.zoom - scroll.scrollTop] : null;
    change();
    render();
    const after = placed.get(node.name);
    if (screen && after) [scroll.scrollLeft, scroll.scrollTop] = [after.x * state.zoom - screen[0], after.y * state.zoom - screen[1]];
  };

  // -- the selected node -----------------------------------------------------------------------------------
  const make = (tag, attributes, ...inner) => {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "click") made.addEventListener("click", value);
      else made.setAttribute(key, value);
    }
    made.append(...inner.flat().filter((part) => part !== null && part !== undefined));
    return made;
  };
  const bars = (rows, most, kind) =>
    make("table", { class: kind }, make("tbody", {}, rows.map(([name, value, shown]) => {
      const bar = make("i");
      bar.style.width = `${Math.max(0, (100 * value) / most).toFixed(1)}%`;
      return make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, String(name))), make("td", { class: "bar", "aria-hidden": "true" }, bar), make("td", {}, shown));
    })));
  const decimals = (value) => (Math.abs(value) < 0.005 ? "0.00" : value.toFixed(2).replace("-", "−"));
  const go = (node) => () => { select(node); focusOn(node); };

  const trail = (node) => {
    const steps = [...Array(node.level).keys()].map((level) => nodes.get(node.name.slice(0, level))), used = new Set();
    return make("ol", { class: "trail", "aria-label": "Way from the root" }, steps.map((step) => {
      const word = telling(step).find((one) => !used.has(one));
      used.add(word);
      return make("li", {}, make("button", { type: "button", click: go(step) }, step.name ? word || step.name : "all"));
    }), make("li", { "aria-current": "true" }, node.name || "root"));
  };
  const entry = (d, right, tip) => make("li", {}, make("div", { class: "head" }, make("bdi", {}, d.title || d.id), make("small", { title: tip }, right)), make("p", { dir: "auto" }, d.text));
  const foundBy = (route) => {
    const list = make("ol", { class: "documents" }, route.found.map((d) => {
      const one = entry(d, d.score.toFixed(3), "score");
      one.append(make("button", { type: "button", class: "plain", click: go(nodes.get(d.leaf)) }, "★ show in the tree"));
      return one;
    }));
    return make("details", { open: "" }, make("summary", {}, `Found for “${route.query}”`), list);
  };
  const documentsOf = (node) => {
    const found = inside(node), shown = found.slice(0, 50);
    const list = make("ul", { class: "documents" }, shown.map((d) => entry(d, percent(node.level ? reach(d, node) : d.reached.at(-1)), node.level ? "probability of this node" : "probability of its leaf")));
    const notes = [];
    if (found.length > shown.length) notes.push(`The ${shown.length} most probable of ${number(found.length)}.`);
    if (listed.length < data.documents) notes.push(`This page holds ${number(listed.length)} of ${number(data.documents)} documents: the most probable of each leaf.`);
    return [make("h3", {}, "Documents"), found.length ? list : make("p", { class: "note" }, node.documents ? "None of its documents is on this page." : "No document takes this way."), make("p", { class: "note" }, notes.join(" "))];
  };
  const whole = () => {
    const b = data.balance, facts = [
      ["Leaves", number(data.leaves)], ["Effective leaves, over all documents", number(Math.round(b.effective_leaves))], ["Effective leaves of one document", b.leaves_per_document.toFixed(1)],
      ["Leaves that no document falls into", number(b.empty_leaves)], ["Gini of the leaves", decimals(b.gini)],
    ];
    const charts = data.congruence.map((c) => [
      make("h3", {}, c.title),
      bars(c.steps.map(([step, cosine]) => [step, cosine, decimals(cosine)]), Math.max(0.05, ...c.steps.map((step) => step[1])), "steps"),
      make("p", { class: "note" }, `Mean cosine by ${c.by}; of any two: ${decimals(c.average)}.`),
    ]);
    return [make("h3", {}, "This tree"), make("table", {}, make("tbody", {}, facts.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value))))), ...charts.flat()];
  };
  const describe = () => {
    const node = state.selected, share = state.route ? state.route.reached[node.name] || 0 : null;
    const below = children(node), words = node.words;
    const title = node.name ? (words.length ? words.slice(0, 3).map(([word]) => word).join(" · ") : label(node, 600, 18).text) : "All documents";
    const meta = make("p", { class: "meta" }, make("b", {}, plural(node.documents, "document")), node.name ? ` · ${percent(node.documents / data.documents)} of all · expects ${number(Math.round(node.share * data.documents))}` : "");
    const asked = share !== null && node.name ? make("p", { class: "meta" }, "The query reaches it with ", make("span", { class: "asked" }, percent(share)), ".") : null;
    const turns = below.length ? [make("h3", {}, "Splits"), make("div", { class: "turns" }, below.map((child) =>
      make("button", { type: "button", click: go(child) }, make("b", {}, child.name.at(-1) === "L" ? "↰ L" : "↳ R"), make("span", {}, label(child, 400, 13).text), make("small", {}, number(child.documents))))),
      node.decided === null ? null : make("p", { class: "note" }, `On average ${percent(node.decided)} of a document takes the likelier turn.`)] : [];
    const terms = words.length ? [make("h3", {}, "Words, against the rest of the tree"), bars(words.map(([word, weight]) => [word, weight, weight.toFixed(1)]), words.reduce((most, [, weight]) => Math.max(most, weight), 1), "words")] : [];
    const found = state.route && state.route.found.length ? foundBy(state.route) : null;
    panel.replaceChildren(...(found ? [found] : []), trail(node), make("h2", {}, make("bdi", {}, title)), meta, ...[asked, ...terms, ...turns].filter(Boolean), ...(node.name ? [] : whole()), ...documentsOf(node));
    panel.scrollTop = 0;
  };
  const select = (node) => {
    state.selected = state.focus = node;
    reveal(node);
    render();
    describe();
    bringInto(node);
    remember();
  };
  const toggle = (node, open = !isOpen(node)) => {
    if (!children(node).length || open === isOpen(node)) return;
    around(node, () => {
      if (open) state.open.add(node.name);
      else {
        for (const name of [...state.open]) if (name.startsWith(node.name)) state.open.delete(name);
        if (state.focus.name.startsWith(node.name)) state.focus = node;
      }
    });
  };

  // -- queries ---------------------------------------------------------------------------------------------
  const say = (text) => { at("status").textContent = text; };
  const light = (route) => {
    state.route = route;
    box.value = route ? route.query : "";
    openTo(state.level);
    if (!route) {
      reveal(state.selected);
      say("");
    } else {
      let end = nodes.get(route.path);
      reveal(end);
      while (end.level > 1 && (route.reached[end.name] || 0) < 0.1) end = parent(end);
      state.selected = state.focus = end;
      const holding = Object.keys(route.reached).filter((name) => !children(nodes.get(name)).length).length;
      say(`The likelier turns lead to ${route.path}, which holds ${percent(route.reached[route.path] || 0)} of the query; ${number(holding)} of ${number(data.leaves)} leaves hold some of it. ★ marks the documents found.`);
    }
    render();
    describe();
    chips();
    bringInto(state.selected);
    remember();
  };
  const chips = () => {
    at("chips").replaceChildren(...routes.map((route) => make("button", { type: "button", "aria-pressed": route === state.route, title: route.query, click: () => light(route === state.route ? null : route) }, route.query)));
    const pressed = at("chips").querySelector("[aria-pressed=true]");
    if (pressed) at("chips").scrollLeft = pressed.offsetLeft - at("chips").offsetLeft - 8;
    at("known").replaceChildren(...routes.map((route) => make("option", { value: route.query })));
  };
  const ask = async (text) => {
    text = text.trim();
    if (!text) return light(null);
    const known = routes.find((route) => route.query.toLowerCase() === text.toLowerCase());
    if (known) return light(known);
    if (!data.live) return say(routes.length ? "This page knows the ways of the queries above only. To ask anything: palmette inspect INDEX --serve" : "This page knows no query. To ask anything: palmette inspect INDEX --serve");
    say("…");
    try {
      const answer = await fetch(`route?q=${encodeURIComponent(text)}`, { cache: "no-store" });
      const route = await answer.json();
      if (!answer.ok) return say(route.error);
      readFound(route);
      routes.push(route);
      light(route);
    } catch {
      say("The server does not answer: is `palmette inspect --serve` still running?");
    }
  };

  // -- the address: #node=LRL&query=2&level=6 ---------------------------------------------------------------
  const own = location.protocol !== "about:";
  const remember = () => {
    if (!own) return;
    const place = new URLSearchParams();
    if (state.selected.name) place.set("node", state.selected.name);
    if (state.route) place.set("query", data.routes.includes(state.route) ? data.routes.indexOf(state.route) : state.route.query);
    if (state.level !== START) place.set("level", state.level);
    history.replaceState(null, "", `#${place}`);
  };
  const recall = () => {
    const place = new URLSearchParams(location.hash.slice(1));
    const level = Number.parseInt(place.get("level"), 10);
    openTo(level >= 1 && level <= deepest ? level : START);
    const wanted = place.get("query");
    state.route = null;
    if (wanted !== null) {
      const route = /^\d+$/.test(wanted) ? routes[Number(wanted)] : routes.find((known) => known.query === wanted);
      if (route) light(route);
      else if (data.live) ask(wanted);
    }
    const node = nodes.get(place.get("node") || "");
    if (node && (node.name || !state.route)) select(node);
    else if (!state.route) select(nodes.get(""));
  };

  // -- hands -----------------------------------------------------------------------------------------------
  const zoomTo = (zoom, x = scroll.clientWidth / 2, y = scroll.clientHeight / 2) => {
    const next = Math.min(3, Math.max(0.08, zoom));
    const [px, py] = [(scroll.scrollLeft + x) / state.zoom, (scroll.scrollTop + y) / state.zoom];
    state.zoom = next;
    render();
    [scroll.scrollLeft, scroll.scrollTop] = [px * next - x, py * next - y];
  };
  const fit = () => {
    const { wide, high } = layout();
    state.zoom = Math.min(1.25, Math.max(0.08, Math.min(scroll.clientWidth / wide, scroll.clientHeight / high)));
    render();
    [scroll.scrollLeft, scroll.scrollTop] = [0, 0];
  };
  const setLevel = (level) => {
    openTo(Math.min(deepest, Math.max(1, level)));
    if (state.route) reveal(nodes.get(state.route.path));
    render();
    bringInto(state.focus);
    remember();
  };

  let drag = null;
  scroll.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button === 0) drag = { x: event.clientX, y: event.clientY, left: scroll.scrollLeft, top: scroll.scrollTop, moved: false };
  });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
    if (Math.hypot(dx, dy) > 4) { drag.moved = true; scroll.classList.add("panning"); }
    if (drag.moved) [scroll.scrollLeft, scroll.scrollTop] = [drag.left - dx, drag.top - dy];
  });
  addEventListener("pointerup", () => { scroll.classList.remove("panning"); setTimeout(() => { drag = null; }); });
  svg.addEventListener("click", (event) => {
    if (drag && drag.moved) return;
    const group = event.target.closest("[data-node]");
    if (!group) return;
    const node = nodes.get(group.dataset.node);
    if (event.target.closest(".toggle") && children(node).length) { state.focus = node; toggle(node); focusOn(node); }
    else { select(node); focusOn(node); }
  });
  svg.addEventListener("dblclick", (event) => {
    const group = event.target.closest("[data-node]");
    if (group && !event.target.closest(".toggle")) toggle(nodes.get(group.dataset.node));
  });
  scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const frame = scroll.getBoundingClientRect();
    zoomTo(state.zoom * Math.exp(-event.deltaY / 400), event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const order = [...placed.values()].map((spot) => spot.node), node = state.focus, place = order.indexOf(node);
    const keys = {
      ArrowDown: () => focusOn(order[Math.min(order.length - 1, place + 1)]),
      ArrowUp: () => focusOn(order[Math.max(0, place - 1)]),
      ArrowRight: () => (isOpen(node) ? focusOn(children(node)[0]) : toggle(node, true)),
      ArrowLeft: () => (isOpen(node) ? toggle(node, false) : node.name && focusOn(parent(node))),
      Home: () => focusOn(order[0]),
      End: () => focusOn(order.at(-1)),
      Enter: () => select(node),
      " ": () => select(node),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (state.route || box.value) light(null);
      else if (state.selected.name) select(nodes.get(""));
      if (document.activeElement === box || panel.contains(document.activeElement)) focusOn(state.focus);
    } else if (document.activeElement === box) return;
    else if (event.key === "/") { event.preventDefault(); box.focus(); box.select(); }
    else if (event.key === "+" || event.key === "=") zoomTo(state.zoom * 1.2);
    else if (event.key === "-") zoomTo(state.zoom / 1.2);
    else if (event.key === "0") fit();
  });
  at("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(box.value); });
  at("fewer").addEventListener("click", () => setLevel(state.level - 1));
  at("more").addEventListener("click", () => setLevel(state.level + 1));
  at("smaller").addEventListener("click", () => zoomTo(state.zoom / 1.2));
  at("larger").addEventListener("click", () => zoomTo(state.zoom * 1.2));
  at("fit").addEventListener("click", fit);
  addEventListener("hashchange", recall);
  new ResizeObserver(() => { render(); bringInto(state.focus); }).observe(at("chart"));

  state.focus = state.selected;
  box.placeholder = data.live ? "Type a query" : routes.length ? "Choose one of the queries below" : "No queries on this page";
  chips();
  recall();
})();
