package migrate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	ch "github.com/ClickHouse/clickhouse-go/v2"
	"github.com/ClickHouse/clickhouse-go/v2/lib/driver"

	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/migrations"
)

// Check reports whether the database can be read. The server must answer, and every migration that this program
// needs must be applied (ErrMissing) and unchanged (ErrChanged). The tables must be as the migrations have made them
// (ErrAltered), and the reader must have the right to read them (ErrAccess). Newer migrations and unknown columns are
// accepted.
func Check(ctx context.Context, db *clickhouse.DB) error {
	all, err := migrations.All()
	if err != nil {
		return err
	}
	as := db.Config().ReaderLogin()
	if err := db.CheckLogin(ctx, as); err != nil {
		return err
	}
	if err := checkReadOnly(ctx, db, db.Reader(), as, false); err != nil {
		return err
	}
	l, err := readApplied(ctx, db, db.Reader())
	if err != nil {
		return db.Explain(as, err)
	}
	var missing []string
	for _, m := range all {
		if _, ok := l.entries[m.Number]; !ok {
			missing = append(missing, m.String())
		}
	}
	if err := checkApplied(db, all, l); err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("check database %s: %w: %s (run millrace migrate)",
			db.Config().Database, ErrMissing, strings.Join(missing, ", "))
	}
	broken, err := probeReads(ctx, db, as)
	if err != nil {
		return err
	}
	if err := checkSchema(ctx, db); err != nil {
		return err // it explains why a view is broken
	}
	return broken
}

// CheckWrites reports whether the user may insert into every table that sinks write to, and read from it. If not, it
// returns ErrAccess with the missing grants.
func CheckWrites(ctx context.Context, db *clickhouse.DB) error {
	as := db.Config().WriterLogin()
	if err := db.CheckLogin(ctx, as); err != nil {
		return err
	}
	if err := checkReadOnly(ctx, db, db.Writer(), as, true); err != nil {
		return err
	}
	refused := refusedGrants{}
	for table, columns := range clickhouse.WrittenColumns() {
		column := slices.Sorted(maps.Keys(columns))[0]
		zero := "defaultValueOfTypeName(" + clickhouse.QuoteText(columns[column]) + ")"
		for grant, statement := range map[string]string{
			"SELECT": fmt.Sprintf("SELECT %s FROM {db}.%s LIMIT 0", clickhouse.QuoteName(column), table),
			"INSERT": fmt.Sprintf("INSERT INTO {db}.%s (%s) SELECT %s WHERE 0", table, clickhouse.QuoteName(column), zero),
		} {
			if err := refused.add(grant, table, db.Exec(ctx, statement)); err != nil {
				return db.Explain(as, fmt.Errorf("probe table %s for writing: %w", table, err))
			}
		}
	}
	return refused.err(as, db.Config().Database, len(clickhouse.WrittenColumns()))
}

// probeReads reads no row from every table and view. broken is the first error that does not depend on the user's
// rights.
func probeReads(ctx context.Context, db *clickhouse.DB, as clickhouse.Login) (broken, err error) {
	wanted, err := wantedTables()
	if err != nil {
		return nil, err
	}
	refused := refusedGrants{}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		err := refused.add("SELECT", name, db.Reader().Exec(ctx, db.Name("SELECT * FROM {db}."+name+" LIMIT 0")))
		var exception *ch.Exception
		switch {
		case errors.As(err, &exception):
			if broken == nil {
				broken = clickhouse.Classify(fmt.Errorf("probe %s for reading: %w", name, err))
			}
		case err != nil:
			return nil, clickhouse.Classify(fmt.Errorf("probe %s for reading: %w", name, err))
		}
	}
	return broken, refused.err(as, db.Config().Database, len(wanted))
}

// checkReadOnly checks the setting readonly of the user's profile. A reader needs 0 or 2: with readonly = 1 it could
// not send a time limit with a query. A writer needs 0.
func checkReadOnly(ctx context.Context, db *clickhouse.DB, conn driver.Conn, as clickhouse.Login, writes bool) error {
	var level uint64
	err := conn.QueryRow(ctx, "SELECT toUInt64(getSetting('readonly'))").Scan(&level)
	if err != nil && !clickhouse.HasCode(err, clickhouse.CodeReadOnly) {
		return db.Explain(as, fmt.Errorf("read the setting readonly of user %s: %w", as.User, err))
	}
	switch {
	case err == nil && (level == 0 || level == 2 && !writes):
		return nil
	case writes:
		return fmt.Errorf("%w: user %s may only read on this server (readonly in its profile), and must be able to write",
			clickhouse.ErrAccess, as.User)
	}
	return fmt.Errorf("%w: user %s may not even set a time limit (readonly = 1 in its profile): give it readonly = 2",
		clickhouse.ErrAccess, as.User)
}

// refusedGrants maps a missing grant to the tables that it is missing on.
type refusedGrants map[string][]string

// add records a refused access. It returns any other error.
func (p refusedGrants) add(grant, table string, err error) error {
	if !clickhouse.HasCode(err, clickhouse.CodeAccessDenied) {
		return err
	}
	p[grant] = append(p[grant], table)
	return nil
}

// err returns an error with the missing grants and the statement that gives the first of them, or nil.
func (p refusedGrants) err(as clickhouse.Login, database string, all int) error {
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
		clickhouse.ErrAccess, as.User, strings.Join(missing, ", "), missing[0], as.User)
}
