package clickhouse_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/need"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/sinks/clickhouse"
	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
	"github.com/millrace/millrace/sinks/clickhouse/embedded"
	"github.com/millrace/millrace/sinks/clickhouse/migrate"
	"github.com/millrace/millrace/sinks/clickhouse/read"
)

// grantsOf returns the grants of a user in deploy/access/clickhouse.
func grantsOf(t *testing.T, user string) (grants []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "access", "clickhouse", user+".sql"))
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if grant, ok := strings.CutPrefix(strings.TrimSpace(line), "GRANT "); ok {
			grant, ok = strings.CutSuffix(grant, " TO millrace_"+user+";")
			if !ok {
				t.Fatalf("%s.sql grants to another: %s", user, line)
			}
			grants = append(grants, grant)
		}
	}
	if len(grants) == 0 {
		t.Fatalf("%s.sql has no grants", user)
	}
	return grants
}

const readOnlyProfile, strictProfile = "limits", "strict"

// users returns a configuration of users, each with the password "secret <name>".
func users(t *testing.T, of map[string][]string) string {
	t.Helper()
	var b strings.Builder
	for name, grants := range of {
		profile := "default"
		if grants[0] == readOnlyProfile || grants[0] == strictProfile {
			profile, grants = grants[0], grants[1:]
		}
		fmt.Fprintf(&b, "<%s><password>secret %[1]s</password><networks><ip>127.0.0.1</ip></networks>"+
			"<profile>%s</profile><quota>default</quota><grants>", name, profile)
		for _, g := range grants {
			fmt.Fprintf(&b, "<query>GRANT %s</query>", g)
		}
		fmt.Fprintf(&b, "</grants></%s>", name)
	}
	return "<clickhouse><profiles><default/><limits><readonly>2</readonly></limits>" +
		"<strict><readonly>1</readonly></strict></profiles><quotas><default/></quotas>" +
		"<users><default><password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile>" +
		"<quota>default</quota></default>" + b.String() + "</users></clickhouse>"
}

// The embedded engine checks users, passwords, profiles and grants as a server does.
func TestUsers(t *testing.T) {
	t.Parallel()
	need.Integration(t)
	migrateGrants, sinkGrants, readerGrants := grantsOf(t, "migrate"), grantsOf(t, "sink"), grantsOf(t, "reader")
	server := clickhousetest.Start(t, embedded.Config{Users: users(t, map[string][]string{
		"owner":   migrateGrants,
		"sink":    sinkGrants,
		"reader":  readerGrants,
		"limited": append([]string{readOnlyProfile}, readerGrants...),
		"strict":  append([]string{strictProfile}, readerGrants...),
		"blind":   {"SELECT ON other.*"},
		"half":    {"SELECT ON millrace.*", "INSERT ON millrace.audit_log", "INSERT ON millrace.copy_state"},
		"part":    {"SELECT ON millrace.schema_migrations", "SELECT ON millrace.audit_log"},
	})})
	as := func(user, reader string) *clickhouse.DB {
		cfg := clickhouse.Config{Addresses: []string{server.Addr()}, User: user, Password: "secret " + user}
		if reader != "" {
			cfg.Reader = clickhouse.Login{User: reader, Password: "secret " + reader}
		}
		return clickhousetest.Connect(t, cfg)
	}
	if _, err := migrate.Run(t.Context(), as("sink", ""), false); !errors.Is(err, clickhouse.ErrAccess) ||
		!strings.Contains(err.Error(), "CREATE DATABASE ON millrace.*") {
		t.Errorf("Migrate as one who may not = %v, want the grant CREATE DATABASE named", err)
	}
	if err := migrate.Check(t.Context(), as("blind", "")); !errors.Is(err, migrate.ErrMissing) &&
		!errors.Is(err, clickhouse.ErrAccess) {
		t.Errorf("Check before there is a database = %v", err)
	}
	for _, user := range []string{"reader", "sink"} { // a role that is started before millrace migrate
		if err := migrate.Check(t.Context(), as(user, "")); !errors.Is(err, migrate.ErrMissing) ||
			!strings.Contains(err.Error(), "(run millrace migrate)") {
			t.Errorf("Check as %s before there is a database = %v", user, err)
		}
	}
	owner := as("owner", "")
	if _, err := migrate.Run(t.Context(), owner, false); err != nil {
		t.Fatalf("Migrate with the grants of the documentation: %v", err)
	}
	if _, err := migrate.Run(t.Context(), owner, true); err != nil {
		t.Fatalf("Migrate again with the grants of the documentation: %v", err)
	}
	next := int64(0) // offset
	for name, tc := range map[string]struct {
		user, reader string
		reads        string // a part of the error of Check; empty: none
		writes       string // a part of the error of CheckWrites; empty: none
	}{
		"one for all":             {"sink", "", "", ""},
		"a reader":                {"sink", "reader", "", ""},
		"a reader by its profile": {"sink", "limited", "", ""},
		"a reader who may set nothing": {"sink", "strict",
			"user strict may not even set a time limit (readonly = 1 in its profile): give it readonly = 2", ""},
		"a reader who sees nothing": {"sink", "blind", "user blind lacks", ""},
		"a reader who sees part": {"sink", "part",
			"user part lacks these grants: SELECT ON millrace.account_history, ", ""},
		"a writer who may only read": {"reader", "", "",
			"user reader lacks these grants: INSERT ON millrace.* (such as GRANT INSERT ON millrace.* TO reader)"},
		"a writer with a read-only profile": {"limited", "", "", "user limited may only read on this server"},
		"a writer of two tables": {"half", "reader", "",
			"user half lacks these grants: INSERT ON millrace.account_history, INSERT ON millrace.admin_log, "},
		"a writer who sees nothing": {"blind", "reader", "",
			"user blind lacks these grants: INSERT ON millrace.*, SELECT ON millrace.*"},
	} {
		t.Run(name, func(t *testing.T) {
			db := as(tc.user, tc.reader)
			checkAccess(t, "Check", migrate.Check(t.Context(), db), tc.reads)
			checkAccess(t, "CheckWrites", migrate.CheckWrites(t.Context(), db), tc.writes)
			if tc.reads+tc.writes == "" {
				next++
				if err := checkUse(t, db, next); err != nil {
					t.Error(err)
				}
			}
		})
	}
	t.Run("who reads", func(t *testing.T) {
		// The user has no rights, so every query must run as the reader, including time limits and lists of copies.
		db := as("blind", "limited")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got := reads(t, db); got != reads(t, owner) {
			t.Errorf("the error for the reader is\n%s", got)
		}
		nothing := func(schemas.KnownCopy) error { return nil }
		if err := read.EachLive(ctx, db, schemas.Copy{}, nothing); err != nil {
			t.Error(err)
		}
	})
}

func checkAccess(t *testing.T, what string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s = %v, want nothing", what, err)
	case want != "" && (!errors.Is(err, clickhouse.ErrAccess) || !strings.Contains(err.Error(), want)):
		t.Errorf("%s = %v, want %s", what, err, want)
	case err != nil && strings.Contains(err.Error(), "secret "):
		t.Errorf("%s has a password in its error: %v", what, err)
	}
}
