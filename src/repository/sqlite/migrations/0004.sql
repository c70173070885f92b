ALTER TABLE attempts ADD COLUMN expected INTEGER;

ALTER TABLE owners ADD COLUMN budget INTEGER;

CREATE TABLE accounts (
    holder   TEXT    NOT NULL CHECK (holder = 'job' OR holder = 'owner'),
    id       INTEGER NOT NULL,
    spent    INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    largest  INTEGER,
    PRIMARY KEY (holder, id)
) STRICT, WITHOUT ROWID;
