package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// Check says whether the database can be read: it answers, has every migration that this
// program needs (ErrMigration), unchanged (ErrChanged) and in the form that is configured (ErrForm), its
// tables are what those have made them (ErrAltered), and the reader may read them (ErrAccess).
// Newer migrations, and columns that this program does not know, are accepted.
func (db *DB) Check(ctx context.Context) error {
	all, err := readMigrations(migrations.Files)
	if err != nil {
		return err
	}
	as := db.cfg.readerLogin()
	if err := db.checkLogin(ctx, as); err != nil {
		return err
	}
	if err := db.checkReadOnly(ctx, db.reads, as, false); err != nil {
		return err
	}
	l, err := db.readApplied(ctx, db.reads)
	if err != nil {
		return db.explain(as, err)
	}
	var missing []string
	for _, m := range all {
		if _, ok := l.entries[m.number]; !ok {
			missing = append(missing, m.String())
		}
	}
	if err := db.checkApplied(ctx, all, l); err != nil {
		return fmt.Errorf("check database %s: %w", db.cfg.Database, err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("check database %s: %w: %s (run millrace migrate)",
			db.cfg.Database, ErrMigration, strings.Join(missing, ", "))
	}
	broken, err := db.probeReads(ctx, as)
	if err != nil {
		return err
	}
	if err := db.checkSchema(ctx); err != nil {
		return err // which tells more of why a view is broken
	}
	return broken
}

// CheckWrites says whether the user may write rows to every table that sinks write to, and ask
// what has landed there; ErrAccess names what is missing.
func (db *DB) CheckWrites(ctx context.Context) error {
	as := db.cfg.writerLogin()
	if err := db.checkLogin(ctx, as); err != nil {
		return err
	}
	if err := db.checkReadOnly(ctx, db.conn, as, true); err != nil {
		return err
	}
	refused := refusedGrants{}
	for table, columns := range writtenTables() {
		column := slices.Sorted(maps.Keys(columns))[0]
		zero := "defaultValueOfTypeName(" + quoteText(columns[column]) + ")"
		for grant, statement := range map[string]string{
			"SELECT": fmt.Sprintf("SELECT %s FROM {db}.%s LIMIT 0", quoteName(column), table),
			"INSERT": fmt.Sprintf("INSERT INTO {db}.%s (%s) SELECT %s WHERE 0", table, quoteName(column), zero),
		} {
			if err := refused.add(grant, table, db.exec(ctx, statement)); err != nil {
				return db.explain(as, fmt.Errorf("probe table %s for writing: %w", table, err))
			}
		}
	}
	return refused.err(as, db.cfg.Database, len(writtenTables()))
}

// mayRead asks every table and view for nothing. Broken is why one cannot answer, whoever asks.
func (db *DB) probeReads(ctx context.Context, as Login) (broken, err error) {
	wanted, err := wantedTables()
	if err != nil {
		return nil, err
	}
	refused := refusedGrants{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if wanted[name].engine == "MaterializedView" {
			continue
		}
		err := refused.add("SELECT", name, db.reads.Exec(ctx, db.name("SELECT * FROM {db}."+name+" LIMIT 0")))
		var said *ch.Exception
		switch {
		case errors.As(err, &said):
			if broken == nil {
				broken = translate(fmt.Errorf("probe %s for reading: %w", name, err))
			}
		case err != nil:
			return nil, translate(fmt.Errorf("probe %s for reading: %w", name, err))
		}
	}
	return broken, refused.err(as, db.cfg.Database, len(wanted))
}

// notReadOnly says whether the profile of a user lets it do what it is here for. One that may
// only read must be allowed to change settings (readonly = 2): without, not even a time limit can be sent along.
func (db *DB) checkReadOnly(ctx context.Context, conn driver.Conn, as Login, writes bool) error {
	var level uint64
	err := conn.QueryRow(ctx, "SELECT toUInt64(getSetting('readonly'))").Scan(&level)
	if err != nil && !hasCode(err, codeReadOnly) {
		return db.explain(as, fmt.Errorf("ask what user %s may do: %w", as.User, err))
	}
	switch {
	case err == nil && (level == 0 || level == 2 && !writes):
		return nil
	case writes:
		return fmt.Errorf("%w: user %s may only read on this server (readonly in its profile), and it is to write", ErrAccess, as.User)
	}
	return fmt.Errorf("%w: user %s may not even set a time limit (readonly = 1 in its profile): give it readonly = 2", ErrAccess, as.User)
}

// greet connects as a user, so that what keeps it out is told before all else.
func (db *DB) checkLogin(ctx context.Context, as Login) error {
	w, err := db.dial(ctx, as)
	if err != nil {
		return db.explain(as, err)
	}
	w.close()
	return nil
}

// explain says in plain words why the server refuses, where that is known by its code.
func (db *DB) explain(as Login, err error) error {
	var e *ch.Exception
	if !errors.As(err, &e) {
		return translate(err)
	}
	switch e.Code {
	case codeAuthentication, codeUnknownUser, codeWrongPassword, codeNoPassword:
		return fmt.Errorf("%w: wrong user or password for user %s: %w", ErrAccess, as.User, err)
	case codeAccessDenied:
		return fmt.Errorf("%w: user %s lacks a grant: %w", ErrAccess, as.User, err)
	case codeReadOnly:
		return fmt.Errorf("%w: user %s may only read on this server: %w", ErrAccess, as.User, err)
	case codeTableReadOnly:
		return fmt.Errorf("%w: the table takes no rows now: its disk can only be read, or its replica has lost its Keeper: %w", ErrAccess, err)
	case codeAddressRefused:
		return fmt.Errorf("%w: user %s may not connect from here: %w", ErrAccess, as.User, err)
	}
	return translate(err)
}

// probes are the tables that were refused, by the grant that is missing.
type refusedGrants map[string][]string

// add takes note of a refusal; another error is returned.
func (p refusedGrants) add(grant, table string, err error) error {
	if !hasCode(err, codeAccessDenied) {
		return err
	}
	p[grant] = append(p[grant], table)
	return nil
}

// err names the grants that are missing, and how to give them.
func (p refusedGrants) err(as Login, database string, all int) error {
	if len(p) == 0 {
		return nil
	}
	var missing []string
	for _, grant := range slices.Sorted(maps.Keys(p)) {
		if len(p[grant]) == all {
			missing = append(missing, fmt.Sprintf("%s ON %s.*", grant, database))
			continue
		}
		for _, table := range slices.Sorted(slices.Values(p[grant])) {
			missing = append(missing, fmt.Sprintf("%s ON %s.%s", grant, database, table))
		}
	}
	return fmt.Errorf("%w: user %s lacks these grants: %s (such as GRANT %s TO %s)",
		ErrAccess, as.User, strings.Join(missing, ", "), missing[0], as.User)
}
