"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const RELEVANT = 0.2, SHOWN = 360, PAGE = 20;
  const AGAINST = { low: 1e-9, high: 1e-9, optimum: 0 };
  const state = { index: null, indexes: [], filter: new Map(), hits: [], current: -1, asked: 0, token: sessionStorage.getItem("token") };

  // Documents are untrusted: every text enters the page as a text node, never as markup.
  const make = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null));
    return element;
  };
  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const say = (text, bad = false) => { at("state").textContent = text; at("state").classList.toggle("bad", bad); };

  // -- the service -------------------------------------------------------------------------------------------
  const send = async (path, body, accept = "application/json") => {
    const headers = { Accept: accept };
    if (body) headers["Content-Type"] = "application/json";
    if (state.token) headers.Authorization = `Bearer ${state.token}`;
    const reply = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
    if (reply.status === 401) { await signIn(); return send(path, body, accept); }
    if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).detail || `The service answered ${reply.status}.`);
    return reply;
  };
  const call = async (name, body = {}) => (await send(`v1/${name}`, { index: state.index, ...body })).json();
  let signing = null;
  const signIn = () => {
    signing ||= new Promise((done) => {
      at("sign-in-why").textContent = state.token ? "This token is not one of the service's." : "";
      at("token").value = "";
      at("sign-in").showModal();
      at("sign-in").addEventListener("close", () => {
        state.token = at("token").value.trim();
        sessionStorage.setItem("token", state.token);
        signing = null;
        done();
      }, { once: true });
    });
    return signing;
  };
  /** Calls `take(event, data)` for every event of a stream. */
  const stream = async (path, body, take) => {
    const reader = (await send(path, body, "text/event-stream")).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const [event, data] = text.slice(0, end).split("\n").map((line) => line.slice(line.indexOf(":") + 2));
        take(event, JSON.parse(data));
      }
    }
  };

  // -- texts with marks --------------------------------------------------------------------------------------
  /** Nodes of a text from one character to another: the sentence is marked, words are bold. Characters are code points. */
  const marked = (points, from, to, sentence, words) => {
    const cuts = [from, to, ...(sentence || []), ...words.flat()].filter((cut) => cut >= from && cut <= to);
    const places = [...new Set(cuts)].sort((a, b) => a - b), nodes = [];
    const inside = (place, [start, end]) => place >= start && place < end;
    let mark = null;
    places.slice(0, -1).forEach((start, n) => {
      const text = points.slice(start, places[n + 1]).join("");
      const piece = words.some((word) => inside(start, word)) ? make("b", {}, text) : text;
      if (!sentence || !inside(start, sentence)) { mark = null; nodes.push(piece); return; }
      if (!mark) nodes.push(mark = make("mark"));
      mark.append(piece);
    });
    return nodes;
  };
  const snippet = (hit) => {
    const points = [...hit.text], { sentence, words } = hit.highlights;
    const middle = sentence ? (sentence[0] + sentence[1]) / 2 : 0;
    const from = Math.max(0, Math.min(sentence ? sentence[0] : 0, Math.round(middle - SHOWN / 2)));
    const to = Math.min(points.length, Math.max(from + SHOWN, sentence ? sentence[1] : 0));
    return [from ? "… " : "", ...marked(points, from, to, sentence, words), to < points.length ? " …" : ""];
  };
  const lineOf = (hit) => [...hit.text].slice(0, hit.highlights.sentence ? hit.highlights.sentence[0] : 0).filter((c) => c === "\n").length;
  const titleOf = (hit) => (typeof hit.metadata.title === "string" && hit.metadata.title) || hit.id;
  /** Where a hit stands: its source, headings and line. A part of a document has its own place in it. */
  const WHOLE = { start: 0, headings: [], first_line: 1 };
  const placeOf = (hit) => {
    const { headings, first_line: first } = hit.passage || WHOLE, { source } = hit.metadata;
    const parts = [titleOf(hit) === hit.id ? "" : hit.id, typeof source === "string" && !hit.id.endsWith(source) ? source : "", ...headings];
    const line = hit.highlights.sentence || hit.passage ? `line ${first + lineOf(hit)}` : "";
    return [...parts, line].filter(Boolean).join(" › ");
  };

  // -- results -----------------------------------------------------------------------------------------------
  const shownMetadata = (hit) => Object.entries(hit.metadata).filter(([name, value]) => !["title", "source"].includes(name) && ["string", "number", "boolean"].includes(typeof value) && String(value).length < 60);
  const entry = (hit, question) => {
    const why = make("div", { class: "why", hidden: true });
    const ask = make("button", { type: "button", class: "plain", "aria-expanded": "false", click: () => reasons(hit, question, why, ask) }, "Why?");
    const head = make("div", { class: "head" }, make("button", { type: "button", class: "plain open", click: () => open(hit) }, make("bdi", {}, titleOf(hit))), hit.score === undefined ? null : make("small", { title: "probability that it is relevant" }, percent(hit.score)));
    const chips = shownMetadata(hit).slice(0, 6).map(([name, value]) => make("span", {}, `${name}: `, make("bdi", {}, String(value))));
    return make("article", { class: "hit" }, head, make("p", { class: "place" }, placeOf(hit)), make("p", { class: "text", dir: "auto" }, snippet(hit)), make("div", { class: "more" }, question ? [ask, ...thumbs(hit, question)] : null, chips), why);
  };
  const thumbs = (hit, question) => {
    const buttons = [[true, "Useful"], [false, "Not useful"]].map(([useful, label]) => make("button", { type: "button", class: "plain thumb", "aria-pressed": "false", click: async (event) => {
      try {
        await call("feedback", { query: question, id: hit.id, useful });
        buttons.forEach((button) => button.setAttribute("aria-pressed", String(button === event.target)));
        say("Thank you: this is kept with the index.");
      } catch (error) { say(error.message, true); }
    } }, label));
    return buttons;
  };
  const reasons = async (hit, question, why, button) => {
    why.hidden = !why.hidden;
    button.setAttribute("aria-expanded", String(!why.hidden));
    if (why.hidden || why.childElementCount) return;
    try {
      const { text, parts } = await call("explain", { query: question, id: hit.id });
      const most = Math.max(...parts.map((part) => Math.abs(part.value)), 1e-9);
      const rows = parts.map((part) => make("tr", {}, make("td", {}, part.name), make("td", {}, make("meter", { min: 0, max: most, value: Math.abs(part.value), "aria-hidden": "true", ...(part.value < 0 ? AGAINST : {}) })), make("td", {}, (part.value < 0 ? "−" : "+") + Math.abs(part.value).toFixed(2))));
      why.replaceChildren(make("p", { dir: "auto" }, text), make("table", {}, make("tbody", {}, rows)), make("p", { class: "note" }, "The parts add up to the log-odds of the probability."));
    } catch (error) { why.replaceChildren(make("p", {}, error.message)); }
  };
  const show = (question, hits) => {
    state.hits = hits;
    state.current = -1;
    const good = hits.filter((hit) => hit.score >= RELEVANT), weak = hits.filter((hit) => hit.score < RELEVANT);
    const answer = make("div", { class: "answer waiting", id: "answer" }, "Reading …");
    state.hits = [...good, ...weak];
    at("results").replaceChildren(...(good.length ? [answer] : [make("p", { class: "note" }, hits.length ? "Nothing fits well. The nearest:" : "Nothing was found.")]), ...good.map((hit) => entry(hit, question)), ...(good.length && weak.length ? [make("p", { class: "note" }, "Less likely:")] : []), ...weak.map((hit) => entry(hit, question)));
  };
  const tell = (answer) => {
    const box = at("answer");
    if (!box) return;
    if (!answer.supports.length) { box.replaceWith(make("p", { class: "note" }, `No passage answers this in so many words (${percent(answer.no_answer)} sure).`)); return; }
    const support = answer.supports[0], hit = state.hits.find((one) => one.id === support.id);
    const sentence = [...support.sentence], start = support.sentence.indexOf(support.text);
    const from = start < 0 ? 0 : [...support.sentence.slice(0, start)].length, to = start < 0 ? sentence.length : from + [...support.text].length;
    const whole = to - from === sentence.length;
    box.className = "answer";
    box.replaceChildren(make("blockquote", { dir: "auto", class: support.sentence.includes("```") ? "code" : null }, whole ? support.sentence : marked(sentence, 0, sentence.length, [from, to], [])), make("p", {}, `${percent(answer.confidence)} sure · `, make("button", { type: "button", class: "plain", click: () => open(hit, [support.start, support.end]) }, make("bdi", {}, hit ? titleOf(hit) : support.id)), answer.supports.length > 1 ? ` and ${plural(answer.supports.length - 1, "more passage")}` : ""));
  };
  const ask = async (question) => {
    const number = ++state.asked, filter = chosen();
    remember(question);
    if (!question.trim()) { at("results").replaceChildren(); document.title = "palmette"; return; }
    document.title = `${question} · palmette`;
    at("results").setAttribute("aria-busy", "true");
    const begun = performance.now();
    try {
      await stream("v1/answer", { index: state.index, question, k: 10, filter }, (event, data) => {
        if (number !== state.asked) return;
        if (event === "problem") throw new Error(data.detail);
        if (event === "hits") { show(question, data.results[0].hits); say(`${plural(state.hits.length, "passage")} in ${Math.round(performance.now() - begun)} ms`); }
        if (event === "answer") tell(data.answers[0]);
      });
    } catch (error) {
      if (number === state.asked) at("results").replaceChildren(make("p", { class: "problem", role: "alert" }, error.message));
    } finally { if (number === state.asked) at("results").removeAttribute("aria-busy"); }
  };

  // -- filters -----------------------------------------------------------------------------------------------
  const chosen = () => {
    const parts = [...state.filter].filter(([, values]) => values.length).map(([name, values]) => ({ [name]: { $in: values } }));
    return parts.length ? { $and: parts } : null;
  };
  const loadFilters = async () => {
    const { fields } = await call("fields");
    const box = (name, [value, count]) => make("label", {}, make("input", { type: "checkbox", checked: (state.filter.get(name) || []).includes(value), change: (event) => {
      const values = (state.filter.get(name) || []).filter((one) => one !== value);
      state.filter.set(name, event.target.checked ? [...values, value] : values);
      ask(at("question").value);
    } }), make("bdi", {}, String(value)), make("small", {}, count.toLocaleString("en")));
    const groups = Object.entries(fields).filter(([, values]) => values.length > 1).flatMap(([name, values]) => [make("h3", {}, name), ...values.slice(0, 8).map((pair) => box(name, pair))]);
    const narrow = matchMedia("(max-width: 760px)").matches;
    at("filters").replaceChildren(...(groups.length ? (narrow ? [make("details", {}, make("summary", {}, "Filters"), groups)] : groups) : []));
  };

  // -- sources -----------------------------------------------------------------------------------------------
  const open = async (hit, place = hit.highlights.sentence) => {
    try {
      const [found] = (await call("get", { ids: [hit.id] })).documents;
      if (!found) throw new Error("This document has gone since it was found.");
      const points = [...(found.text || hit.text)], shift = (hit.passage || WHOLE).start;
      const same = points.slice(shift, shift + [...hit.text].length).join("") === hit.text;
      const moved = ([start, end]) => [start + shift, end + shift], words = same ? hit.highlights.words.map(moved) : [];
      const marks = same && place ? moved(place) : same && hit.passage ? [shift, shift + [...hit.text].length] : null;
      let from = 0, target = null;
      const lines = points.join("").split("\n").map((line, n) => {
        const to = from + [...line].length, sentence = marks && marks[0] < to + 1 && marks[1] > from ? marks : null;
        const row = make("div", { class: "line", "data-line": n + 1 }, make("span", { dir: "auto" }, marked(points, from, to, sentence && [Math.max(from, sentence[0]), Math.min(to, sentence[1])], words)));
        if (sentence && !target) target = row;
        from = to + 1;
        return row;
      });
      at("source-title").textContent = titleOf(hit);
      at("source-place").textContent = placeOf(hit);
      at("source-text").replaceChildren(...lines);
      if (!at("source").open) at("source").showModal();
      if (target) target.scrollIntoView({ block: "center" });
      at("source-text").focus({ preventScroll: true });
    } catch (error) { say(error.message, true); }
  };
  const openId = async (id, line = 1) => {
    const [found] = (await call("get", { ids: [id] })).documents;
    if (!found) return;
    await open({ ...found, highlights: { sentence: null, words: [] } });
    if (line > 1) at("source-text").querySelector(`[data-line="${line}"]`)?.scrollIntoView({ block: "center" });
  };

  // -- browsing ----------------------------------------------------------------------------------------------
  const listed = (documents) => documents.map((one) => entry({ ...one, highlights: { sentence: null, words: [] } }));
  const topicBox = (topic, since) => {
    const changed = topic.changed === null ? "" : `${topic.changed.toLocaleString("en")} changed since ${since}`;
    const typical = topic.typical.map((one) => make("li", {}, make("button", { type: "button", class: "plain", click: () => openId(one.id, one.first_line) }, make("bdi", {}, one.text.slice(0, 110)))));
    return make("section", { class: "topic" }, make("h4", {}, make("bdi", {}, topic.words.join(", ") || topic.name)), make("p", { class: "note" }, [plural(topic.documents, "document"), plural(topic.passages, "passage"), changed].filter(Boolean).join(" · ")), make("ul", {}, typical));
  };
  /** Topics with their typical passages, and what of each has changed since a day. */
  const overview = () => {
    const list = make("div", { "aria-busy": "true" }), since = make("input", { type: "date", "aria-label": "Changed since", change: () => survey() });
    const survey = async () => {
      try {
        const { topics } = await call("overview", { since: since.value || null });
        list.replaceChildren(...topics.map((topic) => topicBox(topic, since.value)));
      } catch (error) { list.replaceChildren(make("p", { class: "problem", role: "alert" }, error.message)); }
      list.removeAttribute("aria-busy");
    };
    survey();
    return [make("h3", {}, "Topics"), make("label", { class: "since" }, "Changed since ", since), list];
  };
  const browse = async () => {
    const about = state.indexes.find((one) => one.name === state.index);
    if (about.method === "tree" && about.documents) {
      const { html } = await call("topics");
      const frame = make("iframe", { sandbox: "allow-scripts", title: "Topics", srcdoc: html, load: () => frame.contentWindow.postMessage("palmette: read", "*") });
      addEventListener("message", (event) => { if (event.source === frame.contentWindow && typeof event.data === "string") openId(event.data); });
      at("browse").replaceChildren(frame);
      return;
    }
    const { fields } = await call("fields"), list = make("div", {}), more = make("button", { type: "button", click: () => page() }, "More");
    let filter = null, offset = 0;
    const page = async () => {
      const { documents } = await call("list", { filter, offset, limit: PAGE });
      list.append(...listed(documents));
      offset += documents.length;
      more.hidden = documents.length < PAGE;
    };
    const pick = (button, chosen) => {
      const pressed = button.getAttribute("aria-pressed") === "true";
      box.querySelectorAll("[aria-pressed]").forEach((one) => one.setAttribute("aria-pressed", "false"));
      button.setAttribute("aria-pressed", String(!pressed));
      filter = pressed ? null : chosen;
      offset = 0;
      list.replaceChildren();
      page();
    };
    const chip = (name, [value, count]) => make("button", { type: "button", "aria-pressed": "false", click: (event) => pick(event.currentTarget, { [name]: value }) }, make("bdi", {}, String(value)), ` ${count}`);
    const box = make("div", { class: "documents" }, overview(), Object.entries(fields).flatMap(([name, values]) => [make("h3", {}, name), make("div", { class: "topics" }, values.map((pair) => chip(name, pair)))]), make("h3", {}, "Documents"), list, more);
    at("browse").replaceChildren(box);
    await page();
  };
  const view = (name) => {
    for (const one of ["ask", "browse"]) {
      at(one).hidden = one !== name;
      at(`to-${one}`).setAttribute("aria-pressed", String(one === name));
    }
    if (name === "browse") browse().catch((error) => at("browse").replaceChildren(make("div", { class: "documents" }, make("p", { class: "problem", role: "alert" }, error.message))));
    else at("question").focus();
  };

  // -- hands -------------------------------------------------------------------------------------------------
  const move = (step) => {
    const hits = [...at("results").querySelectorAll(".hit")];
    if (!hits.length) return;
    hits[state.current]?.classList.remove("current");
    state.current = Math.min(hits.length - 1, Math.max(0, state.current + step));
    hits[state.current].classList.add("current");
    hits[state.current].querySelector(".open").focus({ preventScroll: true });
    hits[state.current].scrollIntoView({ block: "nearest" });
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const typing = event.target.matches("input, select");
    if (at("ask").hidden) return;
    if (event.key === "ArrowDown" && (!typing || event.target === at("question"))) { event.preventDefault(); move(1); }
    else if (event.key === "ArrowUp" && !typing) { event.preventDefault(); if (state.current <= 0) at("question").focus(); move(-1); }
    else if (event.key === "Escape") { at("question").focus(); at("question").select(); }
    else if (typing) return;
    else if (event.key === "/") { event.preventDefault(); at("question").focus(); at("question").select(); }
    else if (event.key === "w" && state.current >= 0) at("results").querySelectorAll(".hit")[state.current].querySelector(".more button").click();
  });
  at("form").addEventListener("submit", (event) => { event.preventDefault(); ask(at("question").value); });
  at("close").addEventListener("click", () => at("source").close());
  at("source").addEventListener("click", (event) => { if (event.target === at("source")) at("source").close(); });
  at("to-ask").addEventListener("click", () => view("ask"));
  at("to-browse").addEventListener("click", () => view("browse"));
  at("index").addEventListener("change", () => { state.index = at("index").value; state.filter.clear(); begin(); });

  // -- the address: #q=question&in=index ------------------------------------------------------------------------
  const remember = (question) => {
    const place = new URLSearchParams();
    if (question.trim()) place.set("q", question);
    if (state.indexes.length > 1) place.set("in", state.index);
    if (`#${place}` !== location.hash) history.pushState(null, "", `#${place}`);
  };
  const recall = () => {
    const place = new URLSearchParams(location.hash.slice(1));
    if (state.indexes.some((one) => one.name === place.get("in"))) state.index = at("index").value = place.get("in");
    at("question").value = place.get("q") || "";
    ask(at("question").value);
  };
  addEventListener("popstate", recall);

  const progress = (about) => {
    if (about.error) return say(about.error, true);
    if (!about.ready) return say("The index is being opened …");
    const follows = about.follows;
    if (follows && follows.error) return say(follows.error, true);
    if (follows && follows.done < follows.total) return say(`Indexing: ${follows.done.toLocaleString("en")} of ${plural(follows.total, "document")} can be asked already`);
    return say(plural(about.documents, "document"));
  };
  const watch = async () => {
    state.indexes = (await (await send("v1/indexes")).json()).indexes;
    const about = state.indexes.find((one) => one.name === state.index) || state.indexes[0];
    if (about) progress(about);
    const busy = about && (!about.ready || (about.follows && about.follows.done < (about.follows.total ?? Infinity)));
    if (busy) setTimeout(() => watch().then(loadFilters).catch(() => {}), 1000);
    return about;
  };
  const begin = async () => {
    try {
      const about = await watch();
      if (!about) throw new Error("This token opens no index.");
      state.index = about.name;
      at("index").replaceChildren(...state.indexes.map((one) => make("option", { selected: one.name === state.index }, one.name)));
      at("which").hidden = state.indexes.length < 2;
      recall();
      if (about.ready) await loadFilters();
      if (!at("browse").hidden) view("browse");
    } catch (error) { say(error.message, true); }
  };
  begin();
})();
