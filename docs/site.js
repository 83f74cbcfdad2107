// What a page does by itself: it judges predictions, stops and steps animations, enlarges figures, stacks wide tables on
// a phone, and leads to the same place in the other language.
(() => {
  const TRUTH = /^(?:[(（].*[)）] ?)?(?:Truth: |真值：)/s; // behind the question that it answers
  const chinese = document.documentElement.lang.startsWith("zh");
  const say = (english, translated) => (chinese ? translated : english);

  function make(name, attributes = {}, ...children) {
    const made = Object.assign(document.createElement(name), attributes);
    made.append(...children);
    return made;
  }

  function button(textContent, onclick, ariaLabel = null) {
    return make("button", { type: "button", textContent, onclick, ariaLabel });
  }

  let store = {}; // where a browser keeps nothing, the answers last as long as the page is open
  try { store = window.localStorage ?? store; } catch {}

  // A paragraph asks, the reader answers below it, and a paragraph in a fold further down tells the truth.
  class Prediction {
    constructor(name, asks) {
      this.key = `grpo_lab:${location.pathname.split("/").pop()}:${name}`; // the same in both languages
      this.answer = JSON.parse(store[this.key] ?? "null");
      this.line = make("p", { className: "said", role: "status" });
      this.hint = asks.querySelector("em");
      this.field = make("fieldset", { className: "predict", ariaLabel: asks.childNodes[1].textContent.trim() });
      this.makeInputs();
      asks.after(this.field, this.line);
    }

    told(paragraph) {
      this.place = paragraph;
      this.fold = paragraph.closest("details");
      this.truth = paragraph.textContent.trim().replace(TRUTH, "").replace(/[.。]$/, "");
      this.fold?.addEventListener("toggle", () => this.judge());
      this.judge();
    }

    take(answer) {
      this.answer = answer;
      store[this.key] = JSON.stringify(answer);
      this.judge();
    }

    judge() {
      if (this.answer === null || this.judged || !this.place) return;
      if (this.fold && !this.fold.open) {
        const show = button(say("Show the result", "看结果"), () => {
          this.fold.open = true;
          this.place.scrollIntoView({ block: "center" });
        });
        return this.line.replaceChildren(say("Kept on this device. ", "预测已存在本机。"), show);
      }
      this.judged = this.field.disabled = true;
      const [truth, guess, verdict] = [this.truth, this.written(this.answer), this.verdict()];
      const told = say(` You said ${guess}: ${verdict}.`, `你猜的是${guess}：${verdict}。`);
      this.line.replaceChildren(make("strong", {}, say(`Truth: ${truth}.`, `真值：${truth}。`)), told);
      this.place.append(told);
      summarise();
    }
  }

  class ChoicePrediction extends Prediction {
    makeInputs() {
      this.hint.className = "said-by-inputs";
      this.choices = this.hint.textContent.trim().slice(1, -1).split(" / ");
      this.choices.forEach((text, i) => {
        const state = { type: "radio", name: this.key, checked: this.answer === i, onchange: () => this.take(i) };
        this.field.append(make("label", {}, make("input", state), ` ${text}`));
      });
    }

    written(answer) {
      return say(this.choices[answer], `“${this.choices[answer]}”`);
    }

    verdict() {
      this.held = this.choices[this.answer] === this.truth;
      return this.held ? say("right", "正确") : say("wrong", "错误");
    }
  }

  class RangePrediction extends Prediction {
    makeInputs() {
      const [low, high] = this.hint.textContent.match(/-?\d+(\.\d+)?/g).map(Number);
      const whole = Number.isInteger(low) && Number.isInteger(high) && high - low >= 100 && high - low < 200;
      this.step = whole ? 1 : (high - low) / 100; // both ends are reached
      this.share = (value) => (value - low) / (high - low);
      const values = () => ends.map((end) => Number(end.value));
      const paint = (moved) => {
        if (values()[0] > values()[1]) moved.value = ends.find((end) => end !== moved).value; // they never cross
        values().forEach((value, i) => this.track.style.setProperty(["--from", "--to"][i], this.share(value)));
        shown.textContent = this.written(values());
      };
      const act = { oninput: (event) => paint(event.target), onchange: () => this.take(values()) };
      const slider = { type: "range", min: low, max: high, step: this.step, ...act };
      const ends = [say("from", "从"), say("to", "到")].map((ariaLabel) => make("input", { ...slider, ariaLabel }));
      ends.forEach((end, i) => (end.value = (this.answer ?? [low, high])[i]));
      this.track = make("div", { className: "track" }, ...ends);
      const shown = make("output");
      this.field.append(this.track, shown);
      paint();
    }

    written(answer) {
      return say("", " ") + answer.map((end) => Number(end.toPrecision(3))).join(say(" to ", " 到 "));
    }

    verdict() {
      const [[low, high], truth] = [this.answer, Number(this.truth)];
      this.held = low - this.step / 2 <= truth && truth <= high + this.step / 2;
      this.track.style.setProperty("--at", this.share(truth));
      this.track.append(make("i"));
      if (this.held) return say("that holds it", "包含真值");
      return truth < low ? say("the truth is lower", "真值更小") : say("the truth is higher", "真值更大");
    }
  }

  const predictions = {};
  let summary = null;

  function summarise() {
    const all = Object.values(predictions);
    const done = all.filter((made) => made.judged);
    if (!summary || !done.length) return;
    const [[n, held], [m, right]] = [RangePrediction, ChoicePrediction].map((kind) => {
      const some = done.filter((made) => made instanceof kind);
      return [some.length, some.filter((made) => made.held).length];
    });
    let said = say(`You answered ${done.length} of ${all.length} predictions. `, `${all.length} 个预测你答了 ${done.length} 个。`);
    if (n) said += say(`Ranges that held the truth: ${held} of ${n}; `, `${n} 个区间里有 ${held} 个包含真值；`);
    if (n) said += say(`80% of ${n} is ${(0.8 * n).toFixed(1)}. `, `${n} 个的 80% 是 ${(0.8 * n).toFixed(1)} 个。`);
    if (m) said += say(`Choices that were right: ${right} of ${m}. `, `${m} 道选择题里答对 ${right} 道。`);
    summary.replaceChildren(said, button(say("Predict again", "重新预测"), () => {
      all.forEach((made) => delete store[made.key]);
      location.reload();
    }));
  }

  for (const cell of document.querySelectorAll("div.cell")) {
    const code = cell.querySelector(".cell_input pre")?.textContent ?? "";
    const said = [...cell.querySelectorAll(".cell_output p")];
    const name = code.match(/^(\w+) = predict\(/m)?.[1];
    const asks = said.find((p) => p.firstElementChild?.tagName === "STRONG" && p.lastElementChild.tagName === "EM");
    if (name && asks) predictions[name] = new (/choices=/.test(code) ? ChoicePrediction : RangePrediction)(name, asks);
    const truths = said.filter((p) => TRUTH.test(p.textContent));
    [...code.matchAll(/(\w+)\.truth\(/g)].forEach((match, i) => predictions[match[1]]?.told(truths[i]));
    if (/^how_well_did_you_predict\(\)/m.test(code)) summary = said[0];
  }
  summarise();

  // An animation stops and steps where the browser can decode its frames; elsewhere it plays as it is.
  async function player(fold, image) {
    const decoder = new ImageDecoder({ data: await (await fetch(image.src)).arrayBuffer(), type: "image/gif" });
    await decoder.tracks.ready;
    const count = decoder.tracks.selectedTrack.frameCount;
    const canvas = make("canvas", { width: image.naturalWidth, height: image.naturalHeight, role: "img" });
    canvas.ariaLabel = image.alt;
    const range = { type: "range", min: 0, max: count - 1, value: 0, ariaLabel: say("frame", "帧") };
    const slider = make("input", { ...range, oninput: () => step(0)() });
    let timer = null;
    const show = async (index) => {
      slider.value = index;
      const { image: frame } = await decoder.decode({ frameIndex: index });
      canvas.getContext("2d").drawImage(frame, 0, 0);
      return frame.duration / 1000;
    };
    const move = (by) => show((Number(slider.value) + by + count) % count);
    const run = () => move(1).then((wait) => (timer &&= setTimeout(run, wait)));
    const set = (playing) => {
      clearTimeout(timer);
      timer = playing ? setTimeout(run) : null;
      play.textContent = playing ? say("Pause", "暂停") : say("Play", "播放");
    };
    const step = (by) => () => set(false) || move(by);
    const play = button("", () => set(!timer));
    const start = () => set(fold.open && !matchMedia("(prefers-reduced-motion: reduce)").matches);
    fold.addEventListener("toggle", start);
    await show(0);
    const back = button("‹", step(-1), say("one frame back", "上一帧"));
    const on = button("›", step(1), say("one frame on", "下一帧"));
    image.replaceWith(canvas, make("div", { className: "player" }, play, back, slider, on));
    start();
  }

  for (const image of window.ImageDecoder ? document.querySelectorAll("details > img[src^='data:image/gif']") : [])
    image.parentElement.addEventListener("toggle", () => player(image.parentElement, image), { once: true });

  addEventListener("beforeprint", () => document.querySelectorAll("article details").forEach((fold) => (fold.open = true)));

  // A figure is as wide as its column; a tap or Enter shows it as large as its letters need; a tap or Escape closes it.
  const enlarged = document.body.appendChild(make("dialog", { className: "enlarged", tabIndex: 0 }));
  enlarged.addEventListener("click", () => enlarged.close());
  addEventListener("keydown", (event) => event.key === "Escape" && enlarged.close(), { capture: true });
  for (const image of document.querySelectorAll(".cell_output > img, .cell_output > a > img, article p > img")) {
    const enlarge = button("", () => {
      enlarged.replaceChildren(Object.assign(image.cloneNode(), { className: "" }));
      enlarged.ariaLabel = say("The figure, enlarged; Escape closes it", "放大的图；按 Esc 关闭");
      enlarged.showModal();
    }, say("Enlarge the figure", "放大这张图"));
    enlarge.className = "enlarge";
    const link = image.closest("a"); // Sphinx links a picture that has a width to itself
    if (link && !link.classList.contains("image-reference")) continue;
    (link ?? image).replaceWith(enlarge);
    enlarge.append(image);
  }

  // Both languages have the same sections in the same order: the one in view is opened there.
  const sections = () => [...document.querySelectorAll("article section[id]")];
  const place = location.hash.match(/^#section-(\d+)$/);
  if (place) {
    const section = sections()[place[1]];
    if (section) location.replace(`#${section.id}`);
  }
  for (const other of document.querySelectorAll("a.language"))
    other.addEventListener("click", () => {
      const [all, shown] = [sections(), (section) => section.getBoundingClientRect()];
      const named = all.findIndex((section) => `#${section.id}` === location.hash);
      const inView = all.filter((section) => shown(section).top < innerHeight / 3).length - 1;
      const near = named >= 0 && shown(all[named]).top < innerHeight && shown(all[named]).bottom > 0;
      if (near || inView > 0) other.hash = `section-${near ? named : inView}`;
    });

  function scrollByKeys() { // what is wider than its place; formulas and letters of another font change what that is
    for (const wide of document.querySelectorAll("div.math, td, .cell_output"))
      if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
  }
  // A formula is set when it comes within a screen of the view, in pieces, so that a page can be scrolled at once.
  const FORMULA = /\\\(|\\\[|\$\$/; // what a cell shows as HTML may have formulas between its words
  const unset = new Set(document.querySelectorAll(".math"));
  for (const output of document.querySelectorAll(".output.text_html")) if (FORMULA.test(output.textContent)) unset.add(output);

  function taken(places) { // each is set once, and its TeX is kept for who copies it
    const now = places.filter((place) => unset.delete(place));
    for (const place of now) if (place.matches(".math")) place.dataset.tex = place.textContent.trim();
    return now;
  }

  function typesetNearView() {
    const PIECE = 50; // milliseconds
    let [queue, size] = [[], 0]; // what is near at first, as one piece: it moves once
    async function work() {
      size ||= queue.length;
      while (queue.length) {
        const [start, piece] = [performance.now(), taken(queue.splice(0, size))];
        if (piece.length) await MathJax.typesetPromise(piece);
        size = Math.max(6, Math.min(Math.round((size * PIECE) / (performance.now() - start)), 2 * size, 32));
        await new Promise((resolve) => setTimeout(resolve));
      }
      scrollByKeys();
    }
    let working = Promise.resolve();
    const near = new IntersectionObserver((entries) => {
      const places = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
      places.forEach((place) => near.unobserve(place));
      queue.push(...places);
      working = working.then(work);
    }, { rootMargin: "100% 0px" });
    unset.forEach((place) => near.observe(place));
    // Paper shows all of them, at once.
    addEventListener("beforeprint", () => {
      const rest = taken([...unset]);
      try { MathJax.typeset(rest); } catch { MathJax.typesetPromise(rest); } // one needs a part that is not loaded yet
    });
  }

  addEventListener("load", () => {
    scrollByKeys();
    const asWritten = () => document.documentElement.classList.add("formulas-as-written"); // where MathJax does not load
    (window.MathJax?.startup?.promise?.then(typesetNearView) ?? Promise.reject()).catch(asWritten);
  });

  // Who copies a formula gets its TeX.
  addEventListener("copy", (event) => {
    const range = getSelection().rangeCount && getSelection().getRangeAt(0).cloneRange();
    const whole = (node) => (node.closest ? node : node.parentElement).closest(".math[data-tex]");
    if (!range || range.collapsed) return;
    if (whole(range.startContainer)) range.setStartBefore(whole(range.startContainer));
    if (whole(range.endContainer)) range.setEndAfter(whole(range.endContainer));
    const copy = make("div", {}, range.cloneContents());
    const formulas = copy.querySelectorAll(".math[data-tex]");
    if (!formulas.length) return;
    for (const formula of formulas) formula.textContent = formula.dataset.tex;
    document.body.append(copy); // as text it has the lines that it has in the page
    event.clipboardData.setData("text/plain", copy.innerText);
    copy.remove();
    event.preventDefault();
  });

  for (const table of document.querySelectorAll("article table")) {
    const heads = [...table.querySelectorAll("thead :is(th, td)")].map((head) => head.textContent);
    const cells = [...table.querySelectorAll("tbody td")];
    if (heads.length < 3 || !cells.some((cell) => cell.textContent.length > say(32, 16))) continue;
    for (const cell of cells) cell.dataset.head = heads[cell.cellIndex];
  }
})();
