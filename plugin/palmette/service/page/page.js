"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const RELEVANT = 0.2, LIKELY = 0.5, PAGE = 20, TURNS = 6, WATCH = 5000, BUSY = 1000;
  const GONE = "The service does not answer: it may have stopped, or the network is down.";
  const AGAINST = { low: 1e-9, high: 1e-9, optimum: 0 };
  const state = { indexes: [], index: null, facets: null, filter: null, hits: [], current: -1, asked: 0, shown: "", opened: "", sources: "", failed: false, llm: null, writing: null, told: null, token: sessionStorage.getItem("token") };

  const make = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  };
  const button = (label, click, properties = {}) => make("button", { type: "button", click, ...properties }, label);
  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;
  const percent = (share) => `${Math.round(100 * share)} %`;
  const say = (text, bad = false) => { at("state").textContent = text; at("state").classList.toggle("bad", bad); };
  const problem = (error, again) => make("p", { class: "problem", role: "alert" }, error.message, again ? [" ", button("Try again", again)] : []);

  // The service's HTML holds these tags and attributes alone; whatever else came would stay out.
  const TAGS = new Set("A B BLOCKQUOTE BR CODE DEL DIV EM H1 H2 H3 H4 H5 H6 HR I LI MARK OL P PRE S SPAN STRONG TABLE TBODY TD TH THEAD TR UL".split(" "));
  const KEPT = ["class", "data-line", "dir", "rel", "scope", "start", "tabindex", "target"];
  /** Nodes of the service's HTML; headings begin at a level, or are paragraphs. */
  const nodes = (html, level = 0) => {
    const copy = (node) => {
      if (node.nodeType === Node.TEXT_NODE) return node.data;
      if (!TAGS.has(node.tagName)) return "";
      const properties = Object.fromEntries(KEPT.filter((name) => node.hasAttribute(name)).map((name) => [name, node.getAttribute(name)]));
      const href = node.getAttribute("href");
      if (href && /^(https?:\/\/|#doc=)/i.test(href)) properties.href = href;
      const heading = /^H([1-6])$/.exec(node.tagName), children = [...node.childNodes].map(copy);
      if (heading && !level) return make("p", { ...properties, class: "heading" }, children);
      const element = make(heading ? `h${Math.min(6, level + Number(heading[1]) - 1)}` : node.tagName, properties, children);
      return node.tagName === "TABLE" ? make("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Table" }, element) : element;
    };
    return [...new DOMParser().parseFromString(html, "text/html").body.childNodes].map(copy);
  };

  // -- the service -------------------------------------------------------------------------------------------
  const send = async (path, body, accept = "application/json", signal = null) => {
    const headers = { Accept: accept };
    if (body) headers["Content-Type"] = "application/json";
    if (state.token) headers.Authorization = `Bearer ${state.token}`;
    const reply = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal }).catch(unanswered);
    if (reply.status === 401) { await signIn(); return send(path, body, accept, signal); }
    if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).detail || `The service answered ${reply.status}.`);
    return reply;
  };
  const unanswered = (error) => { throw error.name === "AbortError" ? error : new Error(GONE); };
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
  const stream = async (path, body, take, signal = null) => {
    const reader = (await send(path, body, "text/event-stream", signal)).body.pipeThrough(new TextDecoderStream()).getReader();
    for (let text = ""; ;) {
      const { done, value } = await reader.read().catch(unanswered);
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const [event, data] = text.slice(0, end).split("\n").map((line) => line.slice(line.indexOf(":") + 2));
        take(event, JSON.parse(data));
      }
    }
  };

  // -- the address: #q=question&in=index&view=browse&f=folder:docs/&doc=id&at=first-last&line=8 -------------
  const read = () => {
    const hash = new URLSearchParams(location.hash.slice(1)), one = (name) => hash.get(name) || "";
    return { q: one("q"), in: one("in"), view: one("view"), f: hash.getAll("f"), doc: one("doc"), at: one("at"), line: one("line") };
  };
  const isKnown = (name) => !name || state.indexes.some((one) => one.name === name);
  const talk = () => ({ turns: [], answer: null, ...history.state });
  const CLOSED = { doc: "", at: "", line: "" };
  /**
   * Puts changes into the address as a step that Back takes back, and shows what it says.
   *
   * A step keeps the conversation: `turns` before the question, and the `answer` of a question that stays.
   */
  const go = (changes, turns = null) => {
    const hash = new URLSearchParams(), before = read(), next = { ...before, ...changes };
    const stays = !turns && before.q === next.q && String(before.f) === String(next.f);
    const kept = stays ? history.state : { turns: turns || talk().turns };
    if (state.indexes.length > 1 || !isKnown(next.in)) next.in = state.indexes.length > 1 ? state.index : "";
    for (const [name, value] of Object.entries(next)) for (const one of [value].flat()) if (one) hash.append(name, one);
    if (turns || `#${hash}` !== (location.hash || "#")) history.pushState(kept, "", `#${hash}`);
    return show();
  };
  /** Shows the state that the address says: index, question or view, filters, and a document. */
  const show = async () => {
    const place = read();
    const known = isKnown(place.in);
    if (known && place.in && place.in !== state.index) { state.index = place.in; state.facets = null; }
    at("index").value = state.index;
    at("question").value = place.q;
    for (const name of ["ask", "browse"]) at(`to-${name}`).setAttribute("aria-pressed", String((place.view === "browse") === (name === "browse")));
    document.title = [place.view === "browse" ? "Browse" : place.q, "palmette"].filter(Boolean).join(" · ");
    const list = JSON.stringify([known || place.in, state.index, place.view, place.view ? "" : place.q, place.f, talk().turns.length]);
    if (list !== state.shown) {
      state.shown = list;
      if (known) await (place.view === "browse" ? browse(place) : ask(place));
      else await fill(() => { throw new Error(`There is no index “${place.in}” here, or this token does not open it. What you ask now is asked in “${state.index}”.`); });
    } else if (state.told && !talk().answer) {
      // a step back to before the answer came: it has come meanwhile
      history.replaceState({ turns: talk().turns, answer: state.told }, "");
    }
    const opened = known && place.doc ? JSON.stringify([state.index, place.doc, place.at, place.line]) : "";
    if (opened !== state.opened) {
      state.opened = opened;
      if (opened) await open(place);
      else at("source").close();
    }
  };
  const reload = () => {
    if (talk().answer) history.replaceState({ turns: talk().turns }, "");
    state.shown = "";
    notice();
    return show();
  };

  // -- results -----------------------------------------------------------------------------------------------
  const titleOf = (hit) => (typeof hit.metadata.title === "string" && hit.metadata.title) || hit.id;
  /** Characters of the whole document that a hit's best sentence, or else the passage, takes. */
  const placeOf = (hit) => {
    const shift = hit.passage ? hit.passage.start : 0, { sentence } = hit.highlights || {};
    return sentence ? sentence.map((one) => one + shift) : hit.passage ? [shift, hit.passage.end] : null;
  };
  const openHit = (hit, place = placeOf(hit)) => go({ ...CLOSED, doc: hit.id, at: place ? place.join("-") : "" });
  const pdf = (one) => (one.place && one.place.kind === "page") || /\.pdf$/i.test(String(one.metadata.source || ""));
  const follows = () => (state.indexes.find((one) => one.name === state.index) || {}).follows;
  /** Button that opens the original of a document: a PDF at its page, others to be saved. */
  const originalOf = (one, page) => {
    if (!follows() || typeof one.metadata.source !== "string") return null;
    const label = !pdf(one) ? "Original file" : page ? `Open page ${page} of the original` : "Open the original";
    return button(label, async () => {
      const tab = pdf(one) ? window.open("", "_blank") : null;
      try {
        const { url } = await call("original", { id: one.id });
        if (!tab) location.assign(url);
        else { tab.opener = null; tab.location = new URL(page ? `${url}#page=${page}` : url, location.href); }
      } catch (error) { if (tab) tab.close(); say(error.message, true); }
    }, { class: "plain" });
  };
  const pageOf = (one) => (one.place && one.place.kind === "page" ? one.place.first : null);
  const shownMetadata = (hit) => Object.entries(hit.metadata).filter(([name, value]) => !["title", "source"].includes(name) && ["string", "number", "boolean"].includes(typeof value) && String(value).length < 60);
  const entry = (hit, question) => {
    const why = make("div", { class: "why", hidden: true });
    const ask = button("Why?", () => reasons(hit, question, why, ask), { class: "plain", "aria-expanded": "false" });
    const title = button(make("bdi", {}, titleOf(hit)), () => openHit(hit), { class: "plain open" });
    const chips = shownMetadata(hit).slice(0, 6).map(([name, value]) => make("span", {}, `${name}: `, make("bdi", {}, String(value))));
    return make("article", { class: "hit" },
      make("div", { class: "head" }, title, hit.score === undefined ? null : make("small", { title: "probability that it is relevant" }, percent(hit.score))),
      make("p", { class: "place" }, make("bdi", {}, hit.citation || hit.metadata.source || hit.id)),
      make("div", { class: "text rendered" }, nodes(hit.html || "")),
      make("div", { class: "more" }, question ? [ask, ...thumbs(hit, question)] : null, pdf(hit) ? originalOf(hit, pageOf(hit)) : null, chips), why);
  };
  const thumbs = (hit, question) => {
    const both = [[true, "Useful"], [false, "Not useful"]].map(([useful, label]) => button(label, async (event) => {
      try {
        await call("feedback", { query: question, id: hit.id, useful });
        both.forEach((one) => one.setAttribute("aria-pressed", String(one === event.target)));
        say("Thank you: this is kept with the index.");
      } catch (error) { say(error.message, true); }
    }, { class: "plain thumb", "aria-pressed": "false" }));
    return both;
  };
  const reasons = async (hit, question, why, toggle) => {
    why.hidden = !why.hidden;
    toggle.setAttribute("aria-expanded", String(!why.hidden));
    if (why.hidden || why.childElementCount) return;
    try {
      const { text, parts } = await call("explain", { query: question, id: hit.id, filter: state.filter });
      const most = Math.max(...parts.map((part) => Math.abs(part.value)), 1e-9);
      const rows = parts.map((part) => make("tr", {}, make("td", {}, part.name), make("td", {}, make("meter", { min: 0, max: most, value: Math.abs(part.value), "aria-hidden": "true", ...(part.value < 0 ? AGAINST : {}) })), make("td", {}, (part.value < 0 ? "−" : "+") + Math.abs(part.value).toFixed(2))));
      why.replaceChildren(make("p", { dir: "auto" }, text), make("table", {}, make("tbody", {}, rows)), make("p", { class: "note" }, "The parts add up to the log-odds of the probability."));
    } catch (error) { why.replaceChildren(make("p", {}, error.message)); }
  };
  const showHits = (question, hits, note, thread) => {
    const good = hits.filter((hit) => hit.score >= RELEVANT), weak = hits.filter((hit) => hit.score < RELEVANT);
    const first = good.length ? (thread ? make("h2", {}, "Passages") : make("div", { id: "answer", class: "note" }, "Reading …")) : make("p", { class: "note" }, hits.length ? "Nothing fits well. The nearest:" : "Nothing was found.");
    const entries = (some) => some.map((hit) => entry(hit, question));
    state.hits = [...good, ...weak];
    state.current = -1;
    const kept = [thread, note ? make("p", { class: "note" }, `Note: ${note}.`) : null].filter(Boolean);
    at("results").replaceChildren(...kept, first, ...entries(good), ...(good.length && weak.length ? [make("p", { class: "note" }, "Less likely:")] : []), ...entries(weak));
  };
  /** Shows an answer that is likely to be right; else the passages speak. */
  const tell = (answer) => {
    const box = at("answer"), support = answer.supports[0];
    if (!box) return;
    if (!support || answer.confidence < LIKELY) { box.remove(); return; }
    const hit = state.hits.find((one) => one.id === support.id && one.text.includes(support.text)) || { id: support.id };
    const shift = hit.passage ? hit.passage.start : 0;
    const place = support.place ? [support.place.start, support.place.end] : [support.start + shift, support.end + shift];
    box.className = "answer";
    box.replaceChildren(make("blockquote", { class: "rendered" }, nodes(support.html)),
      make("p", {}, `${percent(answer.confidence)} sure · `, button(make("bdi", {}, support.citation), () => openHit(hit, place), { class: "plain" }), answer.supports.length > 1 ? ` and ${plural(answer.supports.length - 1, "more passage")}` : ""));
  };
  /** Fills the results by `load`, which may be overtaken by a later call. */
  const fill = async (load) => {
    const number = ++state.asked;
    if (state.writing) state.writing.abort();
    at("results").setAttribute("aria-busy", "true");
    try { await load(() => number !== state.asked); state.failed = false; }
    catch (error) {
      if (number !== state.asked) return;
      state.failed = error.message === GONE;
      at("results").replaceChildren(problem(error, reload));
    } finally { if (number === state.asked) at("results").removeAttribute("aria-busy"); }
  };
  const ask = (place) => fill(async (late) => {
    const begun = performance.now();
    const filter = await chosen(place);
    if (late()) return;
    state.filter = filter;
    if (!place.q.trim()) { state.hits = []; at("results").replaceChildren(); return; }
    const list = (question, { hits, note }, thread) => {
      if (late()) return;
      showHits(question, hits, note, thread);
      say(`${plural(hits.length, "passage")} in ${Math.round(performance.now() - begun)} ms`);
    };
    if (state.llm) await converse(place, filter, late, async (question, thread) => list(question, (await call("search", { query: question, k: 10, filter, html: true })).results[0], thread));
    else await stream("v1/answer", { index: state.index, question: place.q, k: 10, filter, html: true }, (event, data) => {
      if (late()) return;
      if (event === "problem") throw new Error(data.detail);
      if (event === "hits") list(place.q, data.results[0], null);
      if (event === "answer") tell(data.answers[0]);
    });
    remember();
  });

  // -- a conversation, where the service has a language model --------------------------------------------------
  const MARKUP = /`([^`\n]+)`|\*\*([^*\n]+)\*\*|\[(\d+(?:\s*[,;]\s*\d+)*)\]/g;
  /** Text of a model: code, bold words and citations as such, all else as it was written. */
  const inline = (text, cited) => {
    const parts = [];
    let done = 0;
    for (const found of text.matchAll(MARKUP)) {
      const [all, code, bold, numbers] = found;
      parts.push(text.slice(done, found.index), code ? make("code", {}, code) : bold ? make("strong", {}, bold) : numbers.split(/[,;]/).map((n) => cited(Number(n))));
      done = found.index + all.length;
    }
    return [...parts.flat(), text.slice(done)];
  };
  /** An answer: blocks of code by themselves, what was not found in the sources marked, citations as links. */
  const written = ({ answer, sentences = [], excerpts = [] }) => {
    const points = [...answer], blocks = [];
    const source = (n) => excerpts.find((one) => one.number === n);
    const cited = (citations) => (n) => {
      const one = source(n), check = citations.find((citation) => citation.excerpt === n);
      if (!one) return `[${n}]`;
      const label = `Source ${n}: ${one.citation}`;
      return button(`[${n}]`, () => openExcerpt(one), { class: check && !check.supported ? "plain cite bad" : "plain cite", title: check && check.reason ? `${label}; ${check.reason}` : label });
    };
    let start = 0, code = false;
    const block = (from, to) => {
      const parts = [], plain = (a, b) => { const text = points.slice(a, b).join(""); return code ? [text] : inline(text, cited([])); };
      let done = from;
      for (const sentence of sentences) {
        const a = Math.max(from, sentence.start), b = Math.min(to, sentence.end);
        if (a >= b) continue;
        const text = points.slice(a, b).join(""), ends = b === sentence.end;
        const children = code ? [text] : inline(text, cited(sentence.citations));
        parts.push(...plain(done, a), sentence.supported ? make("span", {}, children) : make("span", { class: "unsupported", title: sentence.reason }, children, ends ? make("small", {}, " not found in the sources") : null));
        done = b;
      }
      blocks.push(make(code ? "pre" : "p", code ? { tabindex: 0 } : { dir: "auto" }, ...parts, ...plain(done, to)));
    };
    for (const found of answer.matchAll(/\n?```[^\n]*\n?|$/g)) {
      const end = [...answer.slice(0, found.index)].length;
      if (end > start) block(start, end);
      start = end + [...found[0]].length;
      code = !code;
    }
    return blocks;
  };
  const openExcerpt = (one) => go({ ...CLOSED, doc: one.id, at: `${one.place.start}-${one.place.end}` });
  /** One question of the conversation, as it was understood, with its answer and the sources that it cites. */
  const turnBox = (turn) => {
    const cited = new Set((turn.sentences || []).flatMap((sentence) => sentence.citations.map((one) => one.excerpt)));
    const sources = (turn.excerpts || []).filter((one) => cited.has(one.number)).map((one) => make("li", { value: one.number }, button(make("bdi", {}, one.citation), () => openExcerpt(one), { class: "plain" })));
    return make("article", { class: "turn" }, make("h2", { dir: "auto" }, turn.question),
      turn.asked && turn.asked !== turn.question ? make("p", { class: "note asked" }, "Understood as: ", make("bdi", {}, turn.asked)) : null,
      turn.answer ? make("div", { class: "rendered written" }, written(turn)) : turn.reason ? make("p", { class: "note" }, `No answer: ${turn.reason}.`) : null,
      turn.note ? make("p", { class: "note" }, `Note: ${turn.note}.`) : null,
      turn.cut ? make("p", { class: "note" }, "The answer was cut at its budget of tokens.") : null,
      sources.length ? make("ol", { class: "sources" }, sources) : null);
  };
  /** Shows the conversation; the model answers its last question, whose passages follow. */
  const converse = async (place, filter, late, passages) => {
    const { turns, answer } = talk(), writing = new AbortController();
    const anew = button("New conversation", () => { go({ q: "", ...CLOSED }, []); at("question").focus(); }, { class: "plain" });
    const thread = make("section", { id: "thread", "aria-label": "Conversation" }, turns.map((turn) => turnBox(turn)));
    const turn = answer || { question: place.q, answer: "" };
    let found = null;
    const more = make("div", { class: "more" }), box = make("article", { class: "turn last" }, more);
    thread.append(box);
    const stop = button("Stop", () => writing.abort(), { class: "plain" }), doing = make("span", {}, "Reading …");
    /** Shows the turn as far as it is; "Stop" stands above the text, and is not moved: a press of it would be lost. */
    const last = (...buttons) => {
      [...box.children].filter((child) => child !== more).forEach((child) => child.remove());
      const parts = [...turnBox(turn).childNodes], ahead = buttons.includes(stop) ? 1 : parts.length;
      more.before(...parts.slice(0, ahead));
      more.after(...parts.slice(ahead));
      const wanted = [...buttons, anew];
      if (wanted.some((one, n) => one !== more.childNodes[n])) more.replaceChildren(...wanted);
    };
    state.told = null;
    const search = (question) => { found = passages(question, thread).catch((error) => error); };
    at("results").replaceChildren(thread);
    if (answer) { last(); search(answer.asked); }
    else {
      last(doing, stop);
      state.writing = writing;
      try {
        const body = { index: state.index, question: place.q, filter, llm: true, history: turns.filter((one) => one.answer).map((one) => [one.asked, one.answer]) };
        await stream("v1/answer", body, (event, data) => {
          if (late()) return;
          if (event === "problem") throw new Error(data.detail);
          if (event === "asked") { turn.asked = data.asked; search(data.asked); }
          if (event === "excerpts") turn.excerpts = data.excerpts;
          if (event === "text") turn.answer += data.text;
          if (turn.answer) doing.textContent = "Writing …";
          if (event !== "answer") { last(doing, stop); return; }
          const { answer: text, asked, sentences, excerpts, reason, usage, note } = data.answers[0];
          const short = excerpts.map(({ number, id, citation, place: where }) => ({ number, id, citation, place: where }));
          Object.assign(turn, { answer: text, asked, sentences, excerpts: short, reason, note, cut: usage.is_cut });
          state.told = turn;
          history.replaceState({ turns, answer: turn }, "");
          last();
        }, writing.signal);
      } catch (error) {
        if (late()) return;
        if (error.name === "AbortError") last(make("span", {}, "Stopped. "), button("Ask again", reload, { class: "plain" }));
        else { last(); box.append(problem(error, reload)); }
      } finally { if (state.writing === writing) state.writing = null; }
    }
    if (!found) search(place.q);
    const failed = await found;
    if (failed) throw failed;
  };

  // -- filters: of each facet any, of all facets all -----------------------------------------------------------
  const facets = async () => {
    state.facets ||= call("fields").then((reply) => reply.facets);
    try { return await state.facets; } catch (error) { state.facets = null; throw error; }
  };
  const chosen = async (place) => {
    const known = await facets();
    const parts = known.map(({ name, values }) => values.filter((one) => place.f.includes(`${name}:${one.value}`)).map((one) => one.filter)).filter((some) => some.length);
    const box = (name, { value, documents }) => make("label", {}, make("input", { type: "checkbox", checked: place.f.includes(`${name}:${value}`), change: (event) => {
      const others = read().f.filter((one) => one !== `${name}:${value}`);
      go({ f: event.target.checked ? [...others, `${name}:${value}`] : others });
    } }), make("bdi", {}, value), make("small", {}, documents.toLocaleString("en")));
    const key = JSON.stringify([state.index, known]);
    if (at("filters").dataset.key !== key) {
      const groups = known.map(({ name, values }) => make("fieldset", { "data-name": name }, make("legend", {}, name), values.map((one) => box(name, one))));
      at("filters").replaceChildren(...(groups.length && matchMedia("(max-width: 760px)").matches ? [make("details", { open: place.f.length > 0 }, make("summary", {}, "Filters"), groups)] : groups));
      at("filters").dataset.key = key;
    } else at("filters").querySelectorAll("input").forEach((input) => {
      input.checked = place.f.includes(`${input.closest("fieldset").dataset.name}:${input.parentElement.querySelector("bdi").textContent}`);
    });
    return parts.length ? { $and: parts.map((some) => ({ $or: some })) } : null;
  };

  // -- a document --------------------------------------------------------------------------------------------
  const open = async (place) => {
    try {
      const mark = /^(\d+)-(\d+)$/.exec(place.at), span = mark && [Number(mark[1]), Number(mark[2])];
      const hit = state.hits.find((one) => one.id === place.doc && String(placeOf(one)) === String(span));
      const shift = hit && hit.passage ? hit.passage.start : 0;
      const words = hit ? hit.highlights.words.map(([start, end]) => [start + shift, end + shift]) : [];
      const [found] = (await call("get", { ids: [place.doc], html: true, mark: span, words: words.slice(0, 1000) })).documents;
      if (!found) throw new Error("There is no such document, or it has gone since it was found.");
      const points = [...found.text], changed = (span && found.text && span[1] > points.length) || (hit && found.text && points.slice(shift, shift + [...hit.text].length).join("") !== hit.text);
      at("source-title").textContent = titleOf(found);
      at("source-place").textContent = changed ? "This document has changed since it was found: the mark may be elsewhere." : (hit && hit.citation) || found.metadata.source || found.id;
      at("source-place").classList.toggle("bad", Boolean(changed));
      at("source-more").replaceChildren(...[originalOf(found, hit ? pageOf(hit) : null)].filter(Boolean));
      at("source-text").replaceChildren(make("div", { class: "rendered whole" }, nodes(found.html, 3)));
      if (!at("source").open) at("source").showModal();
      const lines = [...at("source-text").querySelectorAll("[data-line]")].filter((one) => Number(one.dataset.line) <= Number(place.line));
      const target = at("source-text").querySelector("mark:not(.near)") || lines.pop();
      if (target) target.scrollIntoView({ block: "center" });
      else at("source-text").scrollTop = 0;
      at("source-text").focus({ preventScroll: true });
    } catch (error) {
      say(error.message, true);
      if (at("source").open) at("source-text").replaceChildren(problem(error));
    }
  };
  const openId = (id, line = 1) => go({ ...CLOSED, doc: id, line: line > 1 ? String(line) : "" });

  // -- browsing ----------------------------------------------------------------------------------------------
  const topicBox = (topic) => {
    const typical = topic.typical.map((one) => make("li", {}, button(make("bdi", {}, one.text), () => openId(one.id, one.first_line), { class: "plain" })));
    return make("section", { class: "topic" }, make("h3", {}, make("bdi", {}, topic.words.join(", ") || topic.name)), make("p", { class: "note" }, [plural(topic.documents, "document"), plural(topic.passages, "passage")].join(" · ")), make("ul", {}, typical));
  };
  /** Topics with their typical passages, and the documents. */
  const browse = (place) => fill(async (late) => {
    const filter = await chosen(place);
    state.hits = [];
    state.current = -1;
    const topics = make("div", {}, make("p", { class: "note" }, "Reading …")), list = make("div", {});
    const more = button("More", () => page().catch((error) => list.append(problem(error))));
    const page = async () => {
      const { documents } = await call("list", { filter, offset: list.childElementCount, limit: PAGE, html: true });
      list.append(...documents.map((one) => entry(one)));
      more.hidden = documents.length < PAGE;
    };
    at("results").replaceChildren(make("h2", {}, "Topics"), topics, make("h2", {}, "Documents"), list, more);
    const survey = call("overview", { filter }).then((found) => topics.replaceChildren(...found.topics.map(topicBox)));
    await Promise.all([page(), survey]);
    if (!late()) remember();
  });

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
    const typing = event.target.matches("select, input:not([type=checkbox])"), asking = event.target === at("question");
    if (event.key === "ArrowDown" && (!typing || asking)) { event.preventDefault(); move(1); }
    else if (event.key === "ArrowUp" && !typing) { event.preventDefault(); if (state.current <= 0) at("question").focus(); move(-1); }
    else if (event.key === "Enter" && event.target.matches("[type=checkbox]")) { event.preventDefault(); move(state.current < 0 ? 1 : 0); }
    else if (event.key === "Escape") { at("question").focus(); at("question").select(); }
    else if (typing) return;
    else if (event.key === "/") { event.preventDefault(); at("question").focus(); at("question").select(); }
    else if (event.key === "w" && state.current >= 0) at("results").querySelectorAll(".hit")[state.current].querySelector(".more button")?.click();
  });
  at("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.failed || at("question").value === read().q) state.shown = "";
    const { turns, answer } = talk();
    go({ q: at("question").value, view: "", ...CLOSED }, state.llm ? [...turns, ...(answer ? [answer] : [])].slice(-TURNS) : null);
    at("question").select();
  });
  at("close").addEventListener("click", () => at("source").close());
  at("source").addEventListener("click", (event) => { if (event.target === at("source")) at("source").close(); });
  at("source").addEventListener("close", () => { if (read().doc && state.opened) go(CLOSED); });
  at("source-text").addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#doc="]');
    if (link) { event.preventDefault(); openId(new URLSearchParams(link.getAttribute("href").slice(1)).get("doc")); }
  });
  at("to-ask").addEventListener("click", () => { go({ view: "" }); at("question").focus(); });
  at("to-browse").addEventListener("click", () => go({ view: "browse", ...CLOSED }));
  at("index").addEventListener("change", () => { state.index = at("index").value; state.facets = null; go({ in: state.index, f: [], ...CLOSED }, state.llm ? [] : null); watch(); });
  addEventListener("popstate", show);

  // -- what the service is doing -----------------------------------------------------------------------------
  const notice = (...children) => { at("notice").hidden = !children.length; at("notice").replaceChildren(...children); };
  const sourcesOf = (about) => JSON.stringify([about.name, about.documents, about.passages, about.segments, about.reclaimable]);
  const remember = () => { state.sources = sourcesOf(state.indexes.find((one) => one.name === state.index) || {}); };
  /** Says how far the index is; true while it is not whole. */
  const progress = (about) => {
    const part = about.follows;
    if (about.error || (part && part.error)) say(about.error || part.error, true);
    else if (!about.ready && !part) say("The index is being opened …");
    else if (about.warning) say(about.warning, true);
    else if (part && part.done < (part.total ?? 0)) say(`Indexing: ${part.done.toLocaleString("en")} of ${plural(part.total, "document")} can be asked already`);
    else if (about.ready && !at("state").textContent.match(/ ms$|^Thank/)) say(plural(about.documents, "document"));
    const busy = !about.error && (!about.ready || Boolean(part && part.done < (part.total ?? 0)));
    if (busy && part && part.total) notice(`This folder is being indexed: answers are from ${part.done.toLocaleString("en")} of ${plural(part.total, "document")} so far. `, make("progress", { max: part.total, value: part.done, "aria-label": "Indexed" }));
    else if (state.sources && state.sources !== sourcesOf(about) && state.sources.startsWith(JSON.stringify([about.name]).slice(0, -1))) notice("The sources have changed since this was asked. ", button("Ask again", () => { state.facets = null; reload(); }));
    else if (!busy) notice();
    return busy;
  };
  let timer = 0;
  /** Looks what the service is doing, and again after a while. */
  const watch = async () => {
    clearTimeout(timer);
    let pause = WATCH;
    try {
      ({ indexes: state.indexes, llm: state.llm } = await (await send("v1/indexes")).json());
      const about = state.indexes.find((one) => one.name === state.index) || state.indexes[0];
      if (!about) throw new Error("This token opens no index.");
      const began = !state.index;
      state.index = about.name;
      if (at("index").childElementCount !== state.indexes.length) at("index").replaceChildren(...state.indexes.map((one) => make("option", { selected: one.name === state.index }, one.name)));
      at("which").hidden = state.indexes.length < 2;
      if (at("state").textContent === GONE) say("");
      const was = state.busy;
      state.busy = progress(about);
      if (state.busy) pause = BUSY;
      else if (was) state.facets = null;
      if (about.ready || about.documents) {
        if (began || state.waiting) { state.waiting = false; show(); }
        else if (state.failed) reload();
        else if (was && !state.busy) chosen(read()).catch(() => {});
      } else if (began) state.waiting = true;
    } catch (error) { say(error.message, true); }
    timer = setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", watch, { once: true }) : watch()), pause);
  };
  watch();
})();
