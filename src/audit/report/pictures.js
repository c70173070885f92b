// The pictures at the top. They are drawn for the width that they have, and again when that changes.

function showSummary() {
  const done = new Map(overview.counts);
  const title = overview.title ?? (overview.jobs.length === 1 ? overview.jobs[0].name : many(overview.jobs.length, 'job'));
  document.title = `${plain(title)} – workcrew report`;
  $('title').replaceChildren(name(title));
  $('made').textContent = `made ${moment(overview.made_at_ms)} UTC`;
  $('lead').textContent = sentence(done);

  const strip = $('strip');
  const shown = overview.counts.filter(([, number]) => number > 0);
  for (const [status, number] of shown) {
    const piece = make(`span.${toneOf(status)}`, { title: `${words(status)}: ${count(number)}` });
    piece.style.setProperty('flex-grow', number);
    strip.append(piece);
  }
  strip.setAttribute('aria-label', shown.map(([status, number]) => `${words(status)} ${number}`).join(', ') || 'no units');
  $('statuses').append(...shown.map(([status, number]) => legendItem(status, number)));
  $('tiles').append(...tiles());
}

const legendItem = (code, number) =>
  make('li', {}, make(`span.dot.${toneOf(code)}`), words(code), ' ', make('b', { 'data-count': code }, count(number)));

// What happened, in a sentence or two.
function sentence(done) {
  const { units: all, bill, timeline } = overview;
  if (all === 0) return 'There are no units.';
  const others = [...done].filter(([status, number]) => number > 0 && status !== 'COMPLETED');
  const rest = others.map(([status, number]) => `${count(number)} ${words(status)}`);
  const first = `${count(done.get('COMPLETED'))} of ${many(all, 'unit')} completed${rest.map((part) => `, ${part}`).join('')}.`;
  if (overview.attempts === 0) return first;
  const took = `It took ${duration(timeline.ended_ms - timeline.began_ms)}`;
  if (bill.unpriced_attempts === 0) return `${first} ${took} and cost ${money(bill.nanos)}.`;
  if (bill.nanos === 0) return `${first} ${took}; what it cost is not known.`;
  return `${first} ${took} and cost at least ${money(bill.nanos)}, and ${unknownPrices(bill)}.`;
}

const unknownPrices = (bill) => `${many(bill.unpriced_attempts, 'attempt')} whose price is unknown`;

function tiles() {
  const { bill, timeline, attempts } = overview;
  const tokens = Object.entries(bill.tokens).filter(([, number]) => number > 0);
  const total = tokens.reduce((sum, [, number]) => sum + number, 0);
  const isKnown = bill.unpriced_attempts === 0;
  const span = timeline.began_ms === null ? null : timeline.ended_ms - timeline.began_ms;
  const perUnit = isKnown && overview.costs.values > 0 ? `${money(bill.nanos / overview.costs.values)} a unit, failed attempts included` : null;
  const unknown = isKnown ? null : `${bill.nanos === 0 ? '' : 'and '}${unknownPrices(bill)}`;
  const guessed = bill.estimated_attempts > 0 ? `partly estimated for ${many(bill.estimated_attempts, 'attempt')}` : null;
  return [
    tile('cost', 'Cost', isKnown ? money(bill.nanos) : bill.nanos === 0 ? 'unknown' : `at least ${money(bill.nanos)}`, [unknown ?? perUnit, guessed]),
    tile('tokens', 'Tokens', total === 0 && attempts > 0 ? '–' : compact(total), [tokens.map(([kind, number]) => `${compact(number)} ${words(kind)}`).join(' · ')], count(total)),
    tile('time', 'Time', duration(span), [`${duration(overview.executed_ms)} of execution`, timeline.began_ms === null ? null : `from ${moment(timeline.began_ms)}`]),
    tile('attempts', 'Attempts', count(attempts), [`${many(overview.retried_units, 'unit')} tried more than once`]),
  ];
}

function tile(id, label, value, lines, exact = value) {
  const notes = lines.filter(Boolean).map((line) => make('dd.note', {}, line));
  return make('div.tile', { id: `tile-${id}` }, make('dt', {}, label), make('dd.value', { title: exact }, value), notes);
}

// A lane for each worker, a bar for each attempt.
function drawTimeline() {
  const { lanes, bars, began_ms: began, ended_ms: ended } = overview.timeline;
  if (began === null) return void $('timeline')?.remove();
  const known = overview.outcomes.filter(([, number]) => number > 0);
  $('outcomes').replaceChildren(...known.map(([outcome, number]) => legendItem(outcome, number)));

  const box = $('timeline').querySelector('.drawing');
  const width = box.clientWidth;
  const span = Math.max(ended - began, 1);
  const labels = lanes.map((lane) => lane.worker === null ? 'others' : lane.owner === null ? lane.worker : `${lane.worker} · ${lane.owner}`);
  const longest = Math.max(...labels.map((label) => plain(label).length));
  const left = Math.min(Math.max(longest * 7.2 + 12, 36), width / 4);
  const right = 14;
  const scale = (ms) => left + ms / span * (width - left - right);

  const packed = lanes.map(() => []);
  for (const bar of bars) packed[bar[0]].push(bar);
  const lineHeight = lanes.length > 16 ? 12 : 20;
  let top = 4;
  const drawn = [];
  const names = [];
  lanes.forEach((lane, index) => {
    const rows = pack(packed[index], span);
    const height = Math.max(rows.length, 1) * lineHeight;
    names.push(draw('text', { x: left - 10, y: top + height / 2, class: 'lane' }, shortened(labels[index], Math.floor((left - 12) / 7))));
    names.push(draw('line', { x1: left, x2: width - right, y1: top + height + 2, y2: top + height + 2, class: 'rule' }));
    rows.forEach((row, number) => {
      for (const bar of row) drawn.push(attemptBar(bar, scale, span, top + number * lineHeight + 2, lineHeight - 3));
    });
    top += height + 4;
  });
  const ticks = ticksOf(span, Math.max(2, Math.floor(width / 110)));
  const axis = ticks.map((tick) => [
    draw('line', { x1: scale(tick), x2: scale(tick), y1: 0, y2: top, class: 'grid' }),
    // At the very end its middle would be cut off.
    draw('text', { x: scale(tick), y: top + 15, class: tick === 0 ? 'tick first' : scale(tick) > width - 2 * right ? 'tick last' : 'tick' }, tick === 0 ? '0' : duration(tick).replace(/\.0+ /, ' ')),
  ]);
  const label = `${many(lanes.length, 'worker')}, ${many(overview.attempts, 'attempt')} in ${duration(span)}`;
  box.replaceChildren(draw('svg', { width, height: top + 22, role: 'img', 'aria-label': label }, axis, names, drawn));
}

function attemptBar([, from, to, outcome, attempts, key], scale, span, y, height) {
  const x = scale(from);
  const width = Math.max(scale(to ?? span) - x - 0.5, 1.5);
  const unit = key === null ? undefined : unitsByKey.get(key);
  const what = unit ? plain(unit.id) : many(attempts, 'attempt');
  const title = `${what}: ${words(outcome)}, ${to === null ? 'not ended' : duration(to - from)}`;
  const bar = draw('rect', { x, y, width, height, rx: Math.min(2, width / 2), class: `bar ${toneOf(outcome)}` }, draw('title', {}, title));
  if (unit) {
    bar.classList.add('opens');
    bar.addEventListener('click', () => open(unit));
  }
  return bar;
}

// Attempts of one worker that overlap are drawn below each other, in at most four lines.
function pack(bars, span) {
  const rows = [];
  for (const bar of [...bars].sort((a, b) => a[1] - b[1])) {
    const fits = rows.find((row) => (row.at(-1)[2] ?? span) <= bar[1]);
    if (fits) fits.push(bar);
    else if (rows.length < 4) rows.push([bar]);
    else rows[rows.length - 1].push(bar);
  }
  return rows;
}

const shortened = (text, length) => text.length > length ? `${text.slice(0, Math.max(length - 1, 1))}…` : text;

// Round numbers of milliseconds, about so many.
function ticksOf(span, wanted) {
  const round = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1.5e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5];
  let step = round.find((step) => span / step <= wanted) ?? 864e5;
  while (span / step > wanted) step *= 2;
  return Array.from({ length: Math.floor(span / step) + 1 }, (_, number) => number * step);
}

// How values are spread, on a scale of equal ratios.
function drawSpread(id, spread, shown, note) {
  const figure = $(id);
  if (spread.values === 0) return void figure?.remove();
  const box = figure.querySelector('.drawing');
  const [width, height] = [box.clientWidth, 110];
  const step = (value) => Math.log2(Math.max(value, 1)) * spread.steps_per_doubling;
  const [first, last] = [spread.counts[0][0], spread.counts.at(-1)[0]];
  const group = Math.max(1, Math.ceil((last - first + 1) / 28));
  const bins = new Array(Math.max(Math.floor((last - first) / group) + 1, 1)).fill(0);
  for (const [at, number] of spread.counts) bins[Math.floor((at - first) / group)] += number;
  const most = Math.max(...bins);
  const slot = width / Math.max(bins.length, 7);
  const indent = (width - slot * bins.length) / 2;
  const bars = bins.map((number, index) => {
    const tall = number === 0 ? 0 : Math.max(number / most * (height - 8), 2);
    const low = 2 ** ((first + index * group) / spread.steps_per_doubling);
    const high = 2 ** ((first + (index + 1) * group) / spread.steps_per_doubling);
    const title = `${shown(low)} to ${shown(high)}: ${count(number)}`;
    return draw('rect', { x: indent + index * slot + 1, y: height - tall, width: Math.max(slot - 2, 1), height: tall, rx: 1.5, class: 'bin' }, draw('title', {}, title));
  });
  const marks = [spread.median, spread.ninth_decile].map((value) => {
    const x = Math.min(Math.max(indent + (step(value) - first) / group * slot, 1), width - 1);
    return draw('line', { x1: x, x2: x, y1: 0, y2: height, class: 'mark' }, draw('title', {}, shown(value)));
  });
  const label = `smallest ${shown(spread.smallest)}, median about ${shown(spread.median)}, largest ${shown(spread.largest)}`;
  box.replaceChildren(draw('svg', { width, height, role: 'img', 'aria-label': label }, bars, marks));
  figure.querySelector('.spread').textContent = `half under ${shown(spread.median)}, nine in ten under ${shown(spread.ninth_decile)}`;
  figure.querySelector('.caption').replaceChildren(
    make('span', {}, shown(spread.smallest)), make('span.middle', {}, note), make('span', {}, shown(spread.largest)));
}

// Bars with names that come from outside, the largest first.
function drawBars(id, entries, { size, label, value, choose }) {
  const figure = $(id);
  if (entries.length === 0) return void figure.remove();
  const SHOWN = 8;
  const sorted = [...entries].sort((a, b) => size(b[1]) - size(a[1]));
  const most = Math.max(...sorted.map((entry) => size(entry[1])), 1e-9);
  const rows = sorted.slice(0, SHOWN).map(([title, entry]) => {
    const fill = make('span.fill');
    fill.style.setProperty('width', `${Math.max(size(entry) / most * 100, size(entry) > 0 ? 1 : 0)}%`);
    const text = [make('span.bar-name', {}, name(title ?? 'others')), make('span.bar-note', { title: label(entry) }, label(entry)), make('span.bar-value', {}, value(entry)), make('span.track', {}, fill)];
    if (title === null || !choose) return make('div.bar-row', {}, text);
    const button = make('button.bar-row', { type: 'button', title: 'Show these units' }, text);
    button.addEventListener('click', () => choose(title));
    return button;
  });
  const more = sorted.length > SHOWN ? make('p.caption', {}, `and ${many(sorted.length - SHOWN, 'more', 'more')}`) : null;
  figure.querySelector('.bars').replaceChildren(...rows, ...(more ? [more] : []));
}

function drawPictures() {
  drawTimeline();
  drawSpread('durations', overview.durations, duration, many(overview.durations.values, 'attempt'));
  const whose = overview.bill.unpriced_attempts > 0 ? ['priced unit', 'priced units'] : ['unit', 'units'];
  drawSpread('costs', overview.costs, money, many(overview.costs.values, ...whose));
}

function drawLists() {
  drawBars('models', overview.models, {
    size: (bill) => bill.nanos,
    value: (bill) => bill.unpriced_attempts === 0 ? money(bill.nanos) : bill.nanos === 0 ? 'unknown price' : `≥ ${money(bill.nanos)}`,
    label: (bill) => `${compact(Object.values(bill.tokens).reduce((sum, number) => sum + number, 0))} tokens`,
    choose: (model) => choose('model', model),
  });
  drawBars('failures', overview.failures, {
    size: (failure) => failure.attempts,
    value: (failure) => count(failure.attempts),
    label: (failure) => failure.units === 0 ? '' : `${many(failure.units, 'unit')} failed`,
    choose: (kind) => choose('failure', kind),
  });
}
