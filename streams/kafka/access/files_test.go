package access_test

import (
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/access"
	"github.com/millrace/millrace/streams/kafka/client"
)

var update = flag.Bool("update", false, "write deploy/access/kafka")

// logins are the roles of processes, and the logins of commands and of programs.
var logins = []schemas.Role{
	schemas.RoleIngester, schemas.RolePlanner, schemas.RoleCopier, schemas.RoleDeleter, schemas.RoleChecker,
	schemas.RoleSteward, schemas.RoleSweeper, schemas.RoleDelayer, schemas.RoleSink, access.Migrate, access.Operator,
	access.Viewer, access.Writer,
}

// notifications stands for topics that are configured.
const notifications = "$topic"

// The files in deploy/access/kafka are generated: go test ./streams/kafka/access -update
func TestFiles(t *testing.T) {
	dir := filepath.Join("..", "..", "..", "deploy", "access", "kafka")
	want := map[string]string{}
	table := [][]string{{"login", "resource", "pattern", "name", "operation", "why"}}
	for _, login := range logins {
		rights := access.Rights(client.Config{Prefix: "${PREFIX}", Lanes: []client.Lane{{Name: "*"}},
			Foreign: []string{notifications}}, login)
		want[string(login)+".sh"] = script(login, rights)
		for _, r := range rights {
			name := strings.NewReplacer("${PREFIX}", "PREFIX.", notifications, "NOTIFICATIONS").Replace(r.Name)
			table = append(table, []string{string(login), string(r.Resource), pattern(r), name, r.Operation, r.Why})
		}
	}
	var b strings.Builder
	must(t, csv.NewWriter(&b).WriteAll(table))
	want["rights.csv"] = b.String()
	if *update {
		for name, text := range want {
			mode := os.FileMode(0o644)
			if strings.HasSuffix(name, ".sh") {
				mode = 0o755
			}
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
		}
	}
	there, err := os.ReadDir(dir)
	must(t, err)
	for _, f := range there {
		got, err := os.ReadFile(filepath.Join(dir, f.Name()))
		must(t, err)
		if string(got) != want[f.Name()] {
			t.Errorf("%s is out of date: go test ./streams/kafka/access -update", f.Name())
		}
		delete(want, f.Name())
	}
	for name := range want {
		t.Errorf("%s is missing: go test ./streams/kafka/access -update", name)
	}
}

func pattern(r access.Right) string {
	if r.Prefixed {
		return "prefixed"
	}
	return "literal"
}

// what says what a login is for.
func what(login schemas.Role) string {
	switch login {
	case access.Migrate:
		return "of 'millrace migrate'"
	case access.Operator:
		return "of the commands of operators"
	case access.Viewer:
		return "of commands that only read"
	case access.Writer:
		return "of programs that publish changes, such as those that store through streams/storage/emit"
	}
	return "of role " + string(login)
}

// script returns the file of a login. A line has all names with the same operations for the same reason.
func script(login schemas.Role, rights []access.Right) string {
	var b strings.Builder
	fmt.Fprintf(&b, `#!/bin/sh
# The Kafka rights %s. See docs/deploy/access.md.
# Generated from the catalogue of topics: go test ./streams/kafka/access -update
set -eu
: "${BOOTSTRAP:?set it to host:port of a broker}"
PRINCIPAL=${PRINCIPAL:-User:%s}
PREFIX=${PREFIX-millrace.}
: "${PREFIX:?must not be empty: the rights would be on every topic and group of the brokers}"
acl() {
	"${KAFKA_ACLS:-kafka-acls.sh}" --bootstrap-server "$BOOTSTRAP" \
		${COMMAND_CONFIG:+--command-config "$COMMAND_CONFIG"} --add --allow-principal "$PRINCIPAL" "$@"
}
`, what(login), login)
	type line struct {
		kind          access.Resource
		prefixed      bool
		operation, of string
	}
	var order []line
	names, foreign := map[line][]string{}, []string(nil)
	for _, r := range rights {
		if r.Name == notifications {
			foreign = append(foreign, r.Operation)
			continue
		}
		k := line{r.Resource, r.Prefixed, r.Operation, r.Why}
		if names[k] == nil {
			order = append(order, k)
		}
		names[k] = append(names[k], r.Name)
	}
	for _, k := range order {
		fmt.Fprintf(&b, "\n# %s\nacl --operation %s", k.of, k.operation)
		if k.prefixed {
			b.WriteString(" --resource-pattern-type prefixed")
		}
		for _, name := range names[k] {
			fmt.Fprintf(&b, " \\\n\t--%s \"%s\"", k.kind, name)
		}
		b.WriteString("\n")
	}
	if len(foreign) > 0 {
		b.WriteString("\n# the topics of ingest.notifications, separated by spaces\n" +
			"for topic in ${NOTIFICATIONS:-}; do\n")
		for _, operation := range foreign {
			fmt.Fprintf(&b, "\tacl --operation %s --topic \"%s\"\n", operation, notifications)
		}
		b.WriteString("done\n")
	}
	if login == schemas.RolePlanner {
		b.WriteString("\n# for the process that publishes the policy folder: POLICY_FOLDER=yes\n" +
			"if [ -n \"${POLICY_FOLDER:-}\" ]; then\n\tacl --operation Write --topic \"${PREFIX}policies\"\nfi\n")
	}
	return b.String()
}
