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

// Check reports whether the database can be read. The server must answer, and every migration that this program
// needs must be applied (ErrMigration), unchanged (ErrChanged) and for the configured layout (ErrForm). The tables
// must be as the migrations have made them (ErrAltered), and the reader must have the right to read them
// (ErrAccess). Newer migrations and unknown columns are accepted.
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
		return err // it explains why a view is broken
	}
	return broken
}

// CheckWrites reports whether the user may insert into every table that sinks write to, and read from it. If not, it
// returns ErrAccess with the missing grants.
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

// probeReads reads no row from every table and view. broken is the first error that does not depend on the user's
// rights.
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
		var exception *ch.Exception
		switch {
		case errors.As(err, &exception):
			if broken == nil {
				broken = translate(fmt.Errorf("probe %s for reading: %w", name, err))
			}
		case err != nil:
			return nil, translate(fmt.Errorf("probe %s for reading: %w", name, err))
		}
	}
	return broken, refused.err(as, db.cfg.Database, len(wanted))
}

// checkReadOnly checks the setting readonly of the user's profile. A reader needs 0 or 2: with readonly = 1 it could
// not send a time limit with a query. A writer needs 0.
func (db *DB) checkReadOnly(ctx context.Context, conn driver.Conn, as Login, writes bool) error {
	var level uint64
	err := conn.QueryRow(ctx, "SELECT toUInt64(getSetting('readonly'))").Scan(&level)
	if err != nil && !hasCode(err, codeReadOnly) {
		return db.explain(as, fmt.Errorf("read the setting readonly of user %s: %w", as.User, err))
	}
	switch {
	case err == nil && (level == 0 || level == 2 && !writes):
		return nil
	case writes:
		return fmt.Errorf("%w: user %s may only read on this server (readonly in its profile), and must be able to write",
			ErrAccess, as.User)
	}
	return fmt.Errorf("%w: user %s may not even set a time limit (readonly = 1 in its profile): give it readonly = 2",
		ErrAccess, as.User)
}

// checkLogin connects as a user, so that a refused login is reported before any other error.
func (db *DB) checkLogin(ctx context.Context, as Login) error {
	w, err := db.dial(ctx, as)
	if err != nil {
		return db.explain(as, err)
	}
	w.close()
	return nil
}

// explain adds a plain explanation to errors with a code that means a refused access. Other errors are unavailable.
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
		return fmt.Errorf("%w: the table is read-only now: its disk is read-only, or its replica has lost its Keeper: %w",
			ErrAccess, err)
	case codeAddressRefused:
		return fmt.Errorf("%w: user %s may not connect from here: %w", ErrAccess, as.User, err)
	}
	return translate(err)
}

// refusedGrants maps a missing grant to the tables that it is missing on.
type refusedGrants map[string][]string

// add records a refused access. It returns any other error.
func (p refusedGrants) add(grant, table string, err error) error {
	if !hasCode(err, codeAccessDenied) {
		return err
	}
	p[grant] = append(p[grant], table)
	return nil
}

// err returns an error with the missing grants and the statement that gives the first of them, or nil.
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
