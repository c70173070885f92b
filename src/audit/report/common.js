// What the other files have in common: finding data, making elements, and writing texts, numbers and times.
//
// Nothing here or below makes markup of a text. `make` creates elements by names that stand in this script; whatever comes
// from the data becomes a text node, or an attribute that nothing executes.

const $ = (id) => document.getElementById(id);
const parsed = (element) => JSON.parse(element.textContent);

const overview = parsed($('overview'));
const written = parsed($('written'));

// An element with attributes and children. A child is a node or a text; `null` and `false` are none.
function make(name, attributes = {}, ...children) {
  const [tag, ...classes] = name.split('.');
  const element = document.createElement(tag);
  if (classes.length > 0) element.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? '' : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : said(String(child)));
  }
}

// An element of a drawing.
function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  append(element, children);
  return element;
}

// Characters that show nothing, or that change how others are shown: controls, what turns the direction of writing, what
// has no width, tags, and halves of pairs. The joiners stay, which many scripts and emoji need.
const UNSEEN = new RegExp(
  '[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e' +
  '\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]|\\r(?!\\n)|[\\u{e0000}-\\u{e0fff}]|[\\ud800-\\udfff]', 'gu');

const codeOf = (character) => 'U+' + character.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');

// A text as nodes, in which what cannot be seen is written out and marked.
function said(text) {
  const nodes = document.createDocumentFragment();
  let from = 0;
  for (const { 0: character, index } of text.matchAll(UNSEEN)) {
    if (index > from) nodes.append(text.slice(from, index));
    const mark = document.createElement('span');
    mark.className = 'unseen';
    mark.textContent = codeOf(character);
    nodes.append(mark);
    from = index + character.length;
  }
  if (from < text.length) nodes.append(from === 0 ? text : text.slice(from));
  return nodes;
}

// The same where there can be no nodes: in a title, an option, a label.
const plain = (text) => text.replace(UNSEEN, (character) => `[${codeOf(character)}]`);

// A name that is not to change the order of what stands around it.
const name = (text) => make('bdi', {}, text);

// Numbers.
const counted = new Intl.NumberFormat('en-US');
const count = (number) => counted.format(number);
const many = (number, one, more = one + 's') => `${count(number)} ${number === 1 ? one : more}`;

function compact(number) {
  const steps = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e4, 'k', 1e3]];
  for (const [least, unit, divisor = least] of steps) {
    if (number >= least) return `${(number / divisor).toFixed(number / divisor < 100 ? 1 : 0)} ${unit}`;
  }
  return count(number);
}

function bytes(number) {
  const steps = [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']];
  for (const [unit, word] of steps) if (number >= unit) return `${(number / unit).toFixed(1).replace(/\.0$/, '')} ${word}`;
  return many(number, 'byte');
}

// Nano-dollars as dollars, with as many decimals as say something.
function money(nanos) {
  const dollars = Math.abs(nanos) / 1e9;
  const decimals = dollars === 0 || dollars >= 1 ? 2 : dollars >= 0.01 ? 4 : dollars >= 0.0001 ? 6 : 9;
  const shown = new Intl.NumberFormat('en-US', { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
  return `${nanos < 0 ? '-' : ''}$${shown.format(dollars)}`;
}

// A cost of which a part may be unknown. Unknown is never nothing.
function cost(nanos, unpriced) {
  if (nanos === null) return '–';
  if (unpriced === 0) return money(nanos);
  return nanos === 0 ? 'unknown' : `≥ ${money(nanos)}`;
}

function duration(ms) {
  if (ms === null) return '–';
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const parts = [[86400, 'd', 3600, 'h'], [3600, 'h', 60, 'min'], [60, 'min', 1, 's']];
  const [large, largeWord, small, smallWord] = parts.find(([least]) => seconds >= least);
  const rest = Math.floor((seconds % large) / small);
  return `${count(Math.floor(seconds / large))} ${largeWord}${rest > 0 ? ` ${rest} ${smallWord}` : ''}`;
}

// A moment in UTC. What is no moment is said to be none.
function moment(ms) {
  const date = new Date(ms);
  return Number.isNaN(date.getTime()) ? 'at no known time' : date.toISOString().replace('T', ' ').slice(0, 19);
}

// Statuses and outcomes in words, with the class that gives them their colour.
const words = (code) => code.toLowerCase().replaceAll('_', ' ');
const toneOf = (code) => 'tone-' + code.toLowerCase().replaceAll('_', '-');
const chip = (code) => make(`span.chip.${toneOf(code)}`, {}, words(code));

// Jobs by their ids.
const jobs = new Map(overview.jobs.map((job) => [job.id, job.name]));
const jobName = (id) => jobs.get(id) ?? `job ${id}`;

// The link to a unit, and the command that shows it whole.
const linkTo = (unit) => `#unit=${encodeURIComponent(jobName(unit.job))}/${encodeURIComponent(unit.id)}`;
const quoted = (text) => /^[\w.:/@][\w.:/@-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
const ofJob = (unit) => jobs.size > 1 && unit.job !== undefined ? ` --job ${quoted(jobName(unit.job))}` : '';
const command = (unit) => make('code', {}, `workcrew show${ofJob(unit)} ${unit.id.startsWith('-') ? '-- ' : ''}${quoted(unit.id)}`);

// Rows of the table by the keys of their units. A unit that changed while the page was written may be there twice.
const unitsByKey = new Map();
for (const block of document.querySelectorAll('script.rows')) {
  for (const unit of parsed(block)) unitsByKey.set(unit.key, unit);
}
const units = [...unitsByKey.values()].sort((a, b) => a.key - b.key);

// The contents of a unit, parsed when they are asked for; `null` if the page has none.
const blocks = new Map();
function contentsOf(unit) {
  if (unit.place === null) return null;
  const [block, line] = unit.place;
  if (!blocks.has(block)) blocks.set(block, $(`contents-${block}`).textContent.trim().split('\n'));
  return JSON.parse(blocks.get(block)[line]);
}

// A text that may have been cut, without saying so.
const textOf = (shown) => shown === null || shown === undefined ? '' : typeof shown === 'string' ? shown : shown.text;
