package schemas_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
)

var update = flag.Bool("update", false, "write docs/topics.md")

func TestCatalogue(t *testing.T) {
	entries := schemas.Catalogue("30s", "5m")
	seen := map[schemas.Topic]bool{}
	for _, e := range entries {
		t.Run(string(e.Topic), func(t *testing.T) {
			if seen[e.Topic] {
				t.Error("occurs twice")
			}
			seen[e.Topic] = true
			if len(e.Writers) == 0 || e.KeyDoc == "" {
				t.Errorf("writers %v, key %q", e.Writers, e.KeyDoc)
			}
			// A trimmed topic without a reader would lose unread records.
			if e.Cleanup == schemas.Trim && len(e.Readers) == 0 {
				t.Error("is trimmed, and has no reader")
			}
			if e.Cleanup == schemas.Compact && !e.FixedPartitions {
				t.Error("is compacted, but partitions may be added, which would put a key into two partitions")
			}
			if e.Raw != (e.New == nil) || e.Raw != (e.Key == nil) {
				t.Fatalf("raw %t, new %t, key %t", e.Raw, e.New != nil, e.Key != nil)
			}
			if !e.Raw {
				_ = e.Key(e.New()) // takes its own message
				if e.New() == e.New() {
					t.Error("New returns one message twice")
				}
			}
		})
	}
	for _, topic := range []schemas.Topic{schemas.Again(schemas.RoleCopier), schemas.Delay("5m"), schemas.Dead} {
		if !seen[topic] {
			t.Errorf("%s is missing", topic)
		}
	}
}

// A listed reader that does not read would keep the topic from being trimmed.
func TestReadersOfAdmin(t *testing.T) {
	e, _ := schemas.Lookup(schemas.Admin)
	if want := []schemas.Role{schemas.RoleSteward, schemas.RoleSink}; !slices.Equal(e.Readers, want) {
		t.Errorf("got %v, want %v: the roles that read it", e.Readers, want)
	}
}

func TestAgainOf(t *testing.T) {
	for _, tt := range []struct {
		role   schemas.Role
		origin schemas.Topic
		want   schemas.Topic
	}{
		{schemas.RoleCopier, schemas.DuplicationHigh, "again.copier"},
		{schemas.RoleCopier, schemas.DuplicationLow, "again.copier"},
		{schemas.RoleCopier, schemas.DuplicationLarge, "again.copier.large"},
		{schemas.RoleChecker, schemas.FixityLarge, "again.checker.large"},
		{schemas.RoleChecker, schemas.DuplicationLarge, "again.checker"}, // work of another role
		{schemas.RolePlanner, schemas.Changes, "again.planner"},
		{schemas.RoleCopier, "nonsense", "again.copier"},
		{schemas.RoleSink, schemas.Changes, "again.sink"}, // a topic that does not exist
	} {
		got := schemas.AgainOf(tt.role, tt.origin)
		if got != tt.want {
			t.Errorf("%s of %s: got %s, want %s", tt.role, tt.origin, got, tt.want)
		}
		e, ok := schemas.Lookup(got)
		if origin, known := schemas.Lookup(tt.origin); ok && known &&
			(e.Class == schemas.Large) != (origin.Class == schemas.Large && origin.Readers[0] == tt.role) {
			t.Errorf("%s is of class %s, its messages are of class %s", got, e.Class, origin.Class)
		}
	}
}

func TestLookup(t *testing.T) {
	e, ok := schemas.Lookup(schemas.FixityResults)
	if !ok || e.Topic != schemas.FixityResults || !e.Reads(schemas.RoleSteward) || e.Reads(schemas.RoleCopier) {
		t.Errorf("got %v, %t", e.Topic, ok)
	}
	if _, ok := schemas.Lookup("nonsense"); ok {
		t.Error("a topic that does not exist was found")
	}
}

// docs/topics.md is generated from the catalogue: go test ./schemas -update
func TestTopicsDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Topics\n\nGenerated from the catalogue in `schemas/topics.go` by `go test ./schemas -update`.\n" +
		"In Kafka, the names have the configured prefix, and the brokers date all records\n" +
		"(`message.timestamp.type=LogAppendTime`).\n\n" +
		"| topic | message | key | cleanup | written by | read by | |\n|---|---|---|---|---|---|---|\n")
	for _, e := range schemas.Catalogue("*") {
		message, notes := "any", []string{}
		if !e.Raw {
			message = string(e.New().ProtoReflect().Descriptor().FullName())
		}
		if e.FixedPartitions {
			notes = append(notes, "partitions are never added")
		}
		if lag := e.CompactionLag(); lag > 0 {
			notes = append(notes, fmt.Sprintf("no compaction for %d days", lag/(24*time.Hour)))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", e.Topic, message, e.KeyDoc, e.Cleanup,
			roles(e.Writers), roles(e.Readers), strings.Join(notes, ", "))
	}
	file := filepath.Join("..", "docs", "topics.md")
	if *update {
		must(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	if got := string(read(t, file)); got != b.String() {
		t.Errorf("%s is out of date: go test ./schemas -update", file)
	}
}

func roles(rs []schemas.Role) string {
	names := make([]string, len(rs))
	for i, r := range rs {
		names[i] = string(r)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
