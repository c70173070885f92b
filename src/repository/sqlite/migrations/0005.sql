ALTER TABLE attempts ADD COLUMN answer_of_unit INTEGER;

ALTER TABLE attempts ADD COLUMN answer_of_attempt INTEGER;

CREATE TABLE turns (
    id              INTEGER PRIMARY KEY,
    provider        TEXT    NOT NULL,
    unit_key        INTEGER NOT NULL,
    attempt_number  INTEGER NOT NULL,
    boot_id         TEXT    NOT NULL,
    free_at_boot_ms INTEGER NOT NULL,
    input           INTEGER NOT NULL,
    output          INTEGER NOT NULL,
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT;

CREATE INDEX turns_by_provider ON turns (provider);

CREATE TABLE rate_windows (
    provider        TEXT    NOT NULL,
    boot_id         TEXT    NOT NULL,
    free_at_boot_ms INTEGER NOT NULL,
    requests        INTEGER NOT NULL,
    input           INTEGER NOT NULL,
    output          INTEGER NOT NULL,
    PRIMARY KEY (provider, boot_id, free_at_boot_ms)
) STRICT, WITHOUT ROWID;

CREATE TABLE holds (
    provider      TEXT    PRIMARY KEY,
    until         INTEGER NOT NULL,
    until_boot_ms INTEGER NOT NULL,
    boot_id       TEXT    NOT NULL,
    reason        TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE works (
    key            BLOB    PRIMARY KEY,
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    FOREIGN KEY (unit_key, attempt_number) REFERENCES attempts (unit_key, number)
) STRICT, WITHOUT ROWID;
