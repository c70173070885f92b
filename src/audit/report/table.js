// The table. All its rows are known, but only those in sight are elements: rows have a height that is the same for all.

const COLUMNS = [
  { id: 'unit', label: 'Unit', value: (unit) => unit.id, cell: unitCell },
  { id: 'status', label: 'Status', value: (unit) => unit.status, cell: statusCell },
  { id: 'job', label: 'Job', value: (unit) => jobName(unit.job), cell: (unit) => name(jobName(unit.job)) },
  { id: 'model', label: 'Model', value: (unit) => unit.models.join(', '), cell: (unit) => name(unit.models.join(', ') || '–') },
  { id: 'attempts', label: 'Attempts', value: (unit) => unit.attempts, cell: (unit) => count(unit.attempts), isNumber: true },
  { id: 'time', label: 'Time', value: (unit) => unit.executed_ms ?? -1, cell: (unit) => duration(unit.executed_ms), isNumber: true },
  { id: 'tokens', label: 'Tokens', value: (unit) => unit.tokens, cell: (unit) => unit.tokens === 0 ? '–' : compact(unit.tokens), isNumber: true },
  { id: 'cost', label: 'Cost', value: (unit) => isPriced(unit) ? unit.nanos : -1, cell: (unit) => cost(unit.nanos, unit.unpriced), isNumber: true },
];
// Of what it cost something is known.
const isPriced = (unit) => unit.nanos !== null && (unit.nanos !== 0 || unit.unpriced === 0);
const columns = COLUMNS.filter((column) => column.id !== 'job' || jobs.size > 1);

function unitCell(unit) {
  // What was purged is empty.
  const said = unit.failure_message || unit.prompt;
  const note = said || (unit.is_purged ? 'contents were purged' : unit.type);
  return [
    make('a.unit-id', { href: linkTo(unit) }, name(unit.id)),
    note && make(`span.unit-note${unit.failure_message ? '.bad' : ''}`, {}, name(note)),
  ];
}

function statusCell(unit) {
  return [chip(unit.status), unit.failure && make('span.kind', {}, name(unit.failure))];
}

// What is looked for: `null` is anything.
const wanted = { search: '', status: null, job: null, model: null, failure: null };
const order = { column: null, isDescending: false };
let found = null; // The units that the search found; `null` if nothing is searched for.
let shown = units;

const matches = (unit) =>
  (wanted.status === null || unit.status === wanted.status)
  && (wanted.job === null || unit.job === wanted.job)
  && (wanted.model === null || unit.models.includes(wanted.model))
  && (wanted.failure === null || unit.failure_kinds.includes(wanted.failure))
  && (found === null || found.has(unit));

function refresh() {
  shown = units.filter(matches);
  if (order.column) {
    const { value, isNumber } = order.column;
    const way = order.isDescending ? -1 : 1;
    const compare = isNumber ? (a, b) => a - b : (a, b) => a < b ? -1 : a > b ? 1 : 0;
    shown.sort((a, b) => way * compare(value(a), value(b)) || a.key - b.key);
  }
  $('count').textContent = shown.length === units.length ? many(units.length, 'unit') : `${count(shown.length)} of ${many(units.length, 'unit')}`;
  $('nothing').hidden = shown.length > 0;
  $('nothing').textContent = units.length > 0 ? 'No unit is like that.' : 'There is nothing to show.';
  $('clear').hidden = wanted.search === '' && ['status', 'job', 'model', 'failure'].every((field) => wanted[field] === null);
  $('table').setAttribute('aria-rowcount', shown.length + 1);
  elements.clear();
  $('rows').replaceChildren(above, below);
  showRows();
}

// Rows in sight. Above and below them two empty rows are as high as those that are not.
const above = make('tr.space', { 'aria-hidden': 'true' });
const below = make('tr.space', { 'aria-hidden': 'true' });
const elements = new Map();
const BEYOND = 12;

function showRows() {
  const height = parseFloat(getComputedStyle($('table')).getPropertyValue('--row-height'));
  const top = -$('rows').getBoundingClientRect().top;
  const from = Math.max(0, Math.min(Math.floor(top / height) - BEYOND, shown.length - 1));
  const to = Math.min(shown.length, Math.max(from, Math.ceil((top + innerHeight) / height)) + BEYOND);
  const inSight = new Map();
  for (let index = from; index < to; index++) inSight.set(shown[index].key, index);
  for (const [key, element] of elements) {
    if (!inSight.has(key)) {
      element.remove();
      elements.delete(key);
    }
  }
  // Those that stay are not moved: one of them may have the focus.
  let next = above.nextSibling;
  for (const [key, index] of inSight) {
    if (elements.has(key)) {
      next = elements.get(key).nextSibling;
    } else {
      const element = rowOf(shown[index], index);
      elements.set(key, element);
      $('rows').insertBefore(element, next);
    }
  }
  above.style.height = `${from * height}px`;
  below.style.height = `${(shown.length - to) * height}px`;
}

function rowOf(unit, index) {
  const cells = columns.map((column) => make(`td.col-${column.id}${column.isNumber ? '.number' : ''}`, { 'data-label': column.label }, column.cell(unit)));
  const row = make('tr.unit', { 'aria-rowindex': index + 2, 'data-key': unit.key }, cells);
  row.addEventListener('click', (event) => {
    // A link opens it by itself, and who marks a text does not want to open anything.
    if (!event.target.closest('a') && getSelection().isCollapsed) open(unit);
  });
  return row;
}

// Brings the row of a unit into sight, whatever was looked for.
function scrollTo(unit) {
  if (!shown.includes(unit)) clearFilters();
  const height = parseFloat(getComputedStyle($('table')).getPropertyValue('--row-height'));
  const top = $('rows').getBoundingClientRect().top + scrollY + shown.indexOf(unit) * height;
  if (top < scrollY + 60 || top > scrollY + innerHeight - 2 * height) window.scrollTo({ top: top - innerHeight / 3 });
  showRows();
  document.querySelector('tr.current')?.classList.remove('current');
  elements.get(unit.key)?.classList.add('current');
}

function makeColumns() {
  for (const column of columns) {
    const button = make('button', { type: 'button' }, column.label, make('span.arrow', { 'aria-hidden': 'true' }));
    const head = make(`th.col-${column.id}${column.isNumber ? '.number' : ''}`, { scope: 'col', 'aria-sort': 'none' }, button);
    button.addEventListener('click', () => {
      const isSame = order.column === column;
      // Numbers begin with the largest, names with the first; a third time gives back the order of insertion.
      const first = Boolean(column.isNumber);
      if (isSame && order.isDescending !== first) order.column = null;
      else [order.column, order.isDescending] = [column, isSame ? !first : first];
      for (const other of $('columns').children) other.setAttribute('aria-sort', 'none');
      if (order.column) head.setAttribute('aria-sort', order.isDescending ? 'descending' : 'ascending');
      refresh();
    });
    $('columns').append(head);
  }
}

// Filters offer what is there, with how often it is.
function makeFilters() {
  const numbers = { status: new Map(), job: new Map(), model: new Map(), failure: new Map() };
  const add = (field, value) => numbers[field].set(value, (numbers[field].get(value) ?? 0) + 1);
  for (const unit of units) {
    add('status', unit.status);
    add('job', unit.job);
    unit.models.forEach((model) => add('model', model));
    unit.failure_kinds.forEach((kind) => add('failure', kind));
  }
  const labels = { status: words, job: jobName };
  for (const [field, values] of Object.entries(numbers)) {
    const select = $(`filter-${field}`);
    const options = [...values].sort((a, b) => b[1] - a[1]).slice(0, 500);
    select.append(make('option', { value: '' }, 'any'));
    options.forEach(([value, number], index) => {
      select.append(make('option', { value: index }, `${plain((labels[field] ?? String)(value))} (${count(number)})`));
    });
    select.addEventListener('change', () => {
      wanted[field] = select.value === '' ? null : options[Number(select.value)][0];
      refresh();
    });
    choices[field] = (value) => { select.value = String(options.findIndex(([option]) => option === value)); };
    if (field !== 'status' && values.size < (field === 'failure' ? 1 : 2)) $(`label-${field}`).hidden = true;
  }
}
const choices = {};

// Shows only the units of a model, or of a kind of failure, and goes there.
function choose(field, value) {
  clearFilters();
  wanted[field] = value;
  choices[field](value);
  refresh();
  $('units').scrollIntoView();
}

function clearFilters() {
  for (const field of ['status', 'job', 'model', 'failure']) {
    wanted[field] = null;
    $(`filter-${field}`).value = '';
  }
  wanted.search = $('search').value = '';
  found = null;
  refresh();
}

// The search reads prompts, outputs and errors from the contents, the first time it is used. That may take a while, so it is
// done in slices, and a later search ends an earlier one.
const haystacks = new Map();
const SLICE_MS = 12;
let searches = 0;

function haystackOf(unit) {
  if (!haystacks.has(unit)) {
    const contents = contentsOf(unit);
    const texts = [unit.id, unit.type, unit.prompt, unit.failure, unit.failure_message, textOf(contents?.inputs?.prompt)];
    for (const { about } of contents?.attempts ?? []) {
      texts.push(textOf(about.sent), textOf(about.output), about.failure_kind, textOf(about.failure_message));
    }
    haystacks.set(unit, texts.filter(Boolean).join('\n').toLowerCase());
  }
  return haystacks.get(unit);
}

async function search(text) {
  const number = ++searches;
  wanted.search = text;
  const needle = text.trim().toLowerCase();
  if (needle === '') {
    found = null;
    return refresh();
  }
  const hits = new Set();
  let until = performance.now() + SLICE_MS;
  for (const unit of units) {
    if (haystackOf(unit).includes(needle)) hits.add(unit);
    if (performance.now() > until) {
      $('count').textContent = 'Searching…';
      await new Promise((goOn) => setTimeout(goOn));
      if (number !== searches) return;
      until = performance.now() + SLICE_MS;
    }
  }
  found = hits;
  refresh();
}
