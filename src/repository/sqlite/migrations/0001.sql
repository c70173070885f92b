PRAGMA application_id = 0x776b6372;
CREATE TABLE jobs (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL UNIQUE,
    template   TEXT,
    budget     INTEGER,
    settings   BLOB    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;
CREATE TABLE owners (
    id                INTEGER PRIMARY KEY,
    instance          TEXT    NOT NULL UNIQUE,
    label             TEXT    NOT NULL,
    pid               INTEGER NOT NULL,
    start_ticks       INTEGER NOT NULL,
    boot_id           TEXT    NOT NULL,
    pid_namespace     INTEGER NOT NULL,
    registered_at     INTEGER NOT NULL,
    heartbeat_at      INTEGER NOT NULL,
    heartbeat_boot_ms INTEGER NOT NULL,
    lease_ms          INTEGER NOT NULL,
    ended_at          INTEGER
) STRICT;
CREATE TABLE work_units (
    key                    INTEGER PRIMARY KEY,
    job_id                 INTEGER NOT NULL REFERENCES jobs (id),
    id                     TEXT    NOT NULL,
    status                 TEXT    NOT NULL CHECK (
        status = 'PENDING' OR status = 'ASSIGNED' OR status = 'PROCESSING' OR status = 'CANCEL_REQUESTED'
        OR status = 'COMPLETED' OR status = 'FAILED' OR status = 'CANCELLED'),
    priority               INTEGER NOT NULL,
    has_prompt             INTEGER NOT NULL,
    fence                  INTEGER NOT NULL DEFAULT 0,
    attempt_count          INTEGER NOT NULL DEFAULT 0,
    attempts_used          INTEGER NOT NULL DEFAULT 0,
    releases               INTEGER NOT NULL DEFAULT 0,
    max_retries            INTEGER NOT NULL,
    accepted_by            INTEGER,
    not_before             INTEGER,
    delay_ms               INTEGER,
    queue_deadline_boot_ms INTEGER,
    lease_owner            INTEGER,
    lease_worker           TEXT,
    lease_until_boot_ms    INTEGER,
    failure_kind           TEXT,
    failure_message        TEXT,
    created_at             INTEGER NOT NULL,
    completed_at           INTEGER,
    purged_at              INTEGER,
    CHECK ((lease_owner IS NOT NULL) = (status = 'ASSIGNED' OR status = 'PROCESSING' OR status = 'CANCEL_REQUESTED')),
    CHECK ((lease_owner IS NULL) = (lease_until_boot_ms IS NULL) AND (lease_owner IS NULL) = (lease_worker IS NULL)),
    CHECK ((completed_at IS NOT NULL) = (status = 'COMPLETED' OR status = 'FAILED' OR status = 'CANCELLED')),
    CHECK ((failure_kind IS NOT NULL) = (status = 'FAILED'))
) STRICT;
CREATE UNIQUE INDEX work_units_by_id ON work_units (job_id, id);
CREATE INDEX work_units_ready ON work_units (job_id, accepted_by, priority DESC, key)
    WHERE status = 'PENDING' AND not_before IS NULL AND (has_prompt OR accepted_by IS NOT NULL);
CREATE INDEX work_units_delayed ON work_units (job_id, not_before) WHERE not_before IS NOT NULL;
CREATE INDEX work_units_put_off ON work_units (not_before - delay_ms) WHERE not_before IS NOT NULL;
CREATE INDEX work_units_leased ON work_units (lease_owner, lease_until_boot_ms) WHERE lease_owner IS NOT NULL;
CREATE INDEX work_units_accepted ON work_units (accepted_by) WHERE status = 'PENDING' AND accepted_by IS NOT NULL;
CREATE INDEX work_units_queued ON work_units (queue_deadline_boot_ms) WHERE queue_deadline_boot_ms IS NOT NULL;
CREATE INDEX work_units_ended_badly ON work_units (job_id, status, key) WHERE status = 'FAILED' OR status = 'CANCELLED';
CREATE INDEX work_units_to_purge ON work_units (completed_at, key) WHERE completed_at IS NOT NULL AND purged_at IS NULL;
CREATE TABLE unit_inputs (
    unit_key     INTEGER PRIMARY KEY REFERENCES work_units (key),
    unit_type    TEXT,
    payload      BLOB,
    prompt       TEXT,
    template     TEXT,
    options      BLOB NOT NULL,
    content_hash BLOB NOT NULL,
    prompt_hash  BLOB
) STRICT;
CREATE TABLE attempts (
    unit_key      INTEGER NOT NULL REFERENCES work_units (key),
    number        INTEGER NOT NULL,
    fence         INTEGER NOT NULL,
    owner_id      INTEGER NOT NULL REFERENCES owners (id),
    worker_id     TEXT    NOT NULL,
    claim_token   INTEGER NOT NULL,
    assigned_at   INTEGER NOT NULL,
    started_at    INTEGER,
    ended_at      INTEGER,
    outcome       TEXT CHECK (
        outcome = 'COMPLETED' OR outcome = 'FAILED' OR outcome = 'TIMED_OUT' OR outcome = 'LOST' OR outcome = 'CANCELLED'
        OR outcome = 'RELEASED'),
    is_counted    INTEGER NOT NULL DEFAULT 0,
    failure_kind  TEXT,
    failure_message TEXT,
    session_id    TEXT,
    process       BLOB,
    provenance    BLOB,
    message_count INTEGER,
    head          BLOB,
    messages_lost INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (unit_key, number),
    CHECK ((outcome IS NULL) = (ended_at IS NULL) AND (outcome IS NULL) = (head IS NULL))
) STRICT, WITHOUT ROWID;
CREATE TABLE attempt_results (
    unit_key        INTEGER NOT NULL,
    attempt_number  INTEGER NOT NULL,
    rendered_prompt TEXT,
    result          BLOB,
    output          TEXT,
    late_result     BLOB,
    purged          BLOB,
    PRIMARY KEY (unit_key, attempt_number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;
CREATE TABLE output_files (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    position       INTEGER NOT NULL,
    path           TEXT    NOT NULL,
    size_bytes     INTEGER NOT NULL,
    hash           BLOB    NOT NULL,
    PRIMARY KEY (unit_key, attempt_number, position),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE messages (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    number         INTEGER NOT NULL,
    at             INTEGER NOT NULL,
    role           TEXT    NOT NULL CHECK (role = 'system' OR role = 'user' OR role = 'assistant' OR role = 'tool'),
    encoding       TEXT    NOT NULL CHECK (encoding = 'plain' OR encoding = 'zstd'),
    body           BLOB,
    raw            BLOB,
    content_hash   BLOB    NOT NULL,
    link           BLOB    NOT NULL,
    PRIMARY KEY (unit_key, attempt_number, number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;
CREATE TABLE partials (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    text           TEXT    NOT NULL,
    PRIMARY KEY (unit_key, attempt_number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;
CREATE TABLE checkpoints (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    value          BLOB    NOT NULL,
    PRIMARY KEY (unit_key, attempt_number),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;
CREATE TABLE charges (
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    model          TEXT    NOT NULL,
    input          INTEGER NOT NULL,
    output         INTEGER NOT NULL,
    cache_read     INTEGER NOT NULL,
    cache_write    INTEGER NOT NULL,
    reasoning      INTEGER NOT NULL,
    amount         INTEGER,
    price          BLOB,
    is_estimated   INTEGER NOT NULL,
    PRIMARY KEY (unit_key, attempt_number, model),
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE workers (
    owner_id         INTEGER NOT NULL REFERENCES owners (id),
    id               TEXT    NOT NULL,
    job_id           INTEGER NOT NULL REFERENCES jobs (id),
    status           TEXT    NOT NULL CHECK (
        status = 'STARTING' OR status = 'READY' OR status = 'BUSY' OR status = 'TAINTED' OR status = 'SHUTTING_DOWN'
        OR status = 'TERMINATED' OR status = 'DEAD'),
    capacity         INTEGER NOT NULL,
    load             INTEGER NOT NULL CHECK (load >= 0),
    current_unit     INTEGER,
    units_completed  INTEGER NOT NULL DEFAULT 0,
    units_failed     INTEGER NOT NULL DEFAULT 0,
    total_time_ms    INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    last_activity_at INTEGER NOT NULL,
    PRIMARY KEY (owner_id, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE journal (
    seq            INTEGER PRIMARY KEY,
    at             INTEGER NOT NULL,
    unit_key       INTEGER NOT NULL REFERENCES work_units (key),
    attempt_number INTEGER,
    fence          INTEGER NOT NULL,
    change         TEXT    NOT NULL,
    from_status    TEXT,
    to_status      TEXT    NOT NULL,
    actor          TEXT    NOT NULL,
    reason         TEXT,
    message_count  INTEGER,
    head           BLOB,
    digest         BLOB,
    link           BLOB    NOT NULL
) STRICT;
CREATE INDEX journal_by_unit ON journal (unit_key, seq);
CREATE VIEW units AS
SELECT
    u.key,
    j.name AS job,
    u.id,
    i.unit_type,
    u.status,
    u.priority,
    u.attempt_count,
    u.failure_kind,
    u.failure_message,
    datetime(u.created_at / 1000, 'unixepoch') AS created,
    datetime(u.not_before / 1000, 'unixepoch') AS not_before,
    datetime(a.started_at / 1000, 'unixepoch') AS started,
    datetime(u.completed_at / 1000, 'unixepoch') AS completed,
    a.ended_at - a.started_at AS execution_ms,
    a.worker_id,
    a.session_id,
    CAST(i.options AS TEXT) ->> '$.workspace_dir' AS workspace_dir,
    CAST(i.options AS TEXT) ->> '$.max_iterations' AS max_iterations,
    i.prompt,
    r.rendered_prompt,
    r.output,
    CAST(r.result AS TEXT) AS result,
    (SELECT count(*) FROM messages m WHERE m.unit_key = u.key AND m.attempt_number = u.attempt_count) AS messages,
    (SELECT sum(c.amount) / 1e9 FROM charges c WHERE c.unit_key = u.key) AS dollars,
    (SELECT count(*) FROM charges c WHERE c.unit_key = u.key AND c.amount IS NULL) AS unpriced
FROM work_units u
JOIN jobs j ON j.id = u.job_id
JOIN unit_inputs i ON i.unit_key = u.key
LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
LEFT JOIN attempt_results r ON r.unit_key = u.key AND r.attempt_number = u.attempt_count;

CREATE VIEW active_units AS
SELECT
    u.key,
    j.name AS job,
    u.id,
    u.status,
    u.attempt_count AS attempt_number,
    u.fence,
    u.lease_owner AS owner_id,
    o.label AS owner,
    o.pid,
    u.lease_worker AS worker_id,
    datetime(a.assigned_at / 1000, 'unixepoch') AS since,
    u.lease_until_boot_ms - o.heartbeat_boot_ms + o.heartbeat_at
        - CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) AS lease_left_ms
FROM work_units u INDEXED BY work_units_leased
JOIN jobs j ON j.id = u.job_id
LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
LEFT JOIN owners o ON o.id = u.lease_owner
WHERE u.lease_owner IS NOT NULL;

CREATE VIEW queued_units AS
SELECT
    u.key,
    j.name AS job,
    u.id,
    i.unit_type,
    u.priority,
    u.attempt_count,
    u.accepted_by AS owner_id,
    datetime(u.created_at / 1000, 'unixepoch') AS created,
    datetime(u.not_before / 1000, 'unixepoch') AS not_before
FROM work_units u
JOIN jobs j ON j.id = u.job_id
JOIN unit_inputs i ON i.unit_key = u.key
WHERE u.status = 'PENDING';

CREATE VIEW stale_leases AS
SELECT
    l.key,
    l.job,
    l.id,
    l.status,
    l.attempt_number,
    l.owner_id,
    l.owner,
    l.pid,
    l.worker_id,
    l.since,
    CASE WHEN o.boot_id <> latest.boot_id THEN 0 ELSE l.lease_left_ms END AS lease_left_ms,
    CASE WHEN o.boot_id <> latest.boot_id THEN 'the machine was started again' ELSE 'the lease ran out' END AS reason
FROM active_units l
LEFT JOIN owners o ON o.id = l.owner_id AND o.boot_id <> ''
LEFT JOIN owners latest ON latest.id = (SELECT max(id) FROM owners WHERE boot_id <> '')
WHERE o.boot_id <> latest.boot_id OR l.lease_left_ms <= 0;
