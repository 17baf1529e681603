package clickhouse

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
	"github.com/millrace/millrace/sinks/clickhouse/match"
)

// A rowKey identifies the row of a message in a table.
type rowKey struct {
	key   match.Key
	month uint16 // a monthTag
}

// A rowMatcher finds the rows of a topic's records in one table.
type rowMatcher struct {
	table string
	// identify returns the key of the row of a record. hasRow is false if the table stores no row for it. An error means
	// that the record cannot become a row.
	identify func(*schemas.Delivery) (k rowKey, hasRow bool, err error)
	// keySuffix is SQL for the part of the key that distinguishes rows with the same id; empty if the id is the whole key.
	keySuffix string
	rowBinary string   // SQL for the bytes that the sum of a row covers
	topics    []string // all topics that the table stores
}

// rowMatchers returns the rowMatchers of every topic.
func rowMatchers() map[schemas.Topic][]rowMatcher {
	letters, results := deadLetters(), duplicationLog()
	all := map[schemas.Topic][]rowMatcher{
		schemas.Changes:            {rowMatcherOf(auditLog())},
		schemas.DuplicationResults: {rowMatcherOf(results)},
		schemas.FixityResults:      {rowMatcherOf(bitLog())},
		schemas.Incidents:          {incidentMatcher()},
		schemas.Reports:            {rowMatcherOf(reports())},
		schemas.Jobs:               {rowMatcherOf(jobLog())},
		schemas.Policies:           {rowMatcherOf(policyHistory())},
		schemas.Admin:              {rowMatcherOf(adminLog())},
		schemas.Dead: {
			{table: letters.name, rowBinary: letters.rowBinary(), identify: func(d *schemas.Delivery) (rowKey, bool, error) {
				k, err := rowKeyIn(letters, row[deadLetter]{d, readDead(d)})
				return k, true, err
			}},
			{table: results.name, rowBinary: results.rowBinary(), identify: func(d *schemas.Delivery) (rowKey, bool, error) {
				l := readDead(d)
				k, err := rowKeyIn(results, row[*pb.DuplicationResult]{d, l.result(d)})
				return k, l.isCommand(), err
			}},
		},
	}
	feeding := map[string][]string{}
	for topic, cs := range all {
		for _, c := range cs {
			feeding[c.table] = append(feeding[c.table], string(topic))
		}
	}
	for _, cs := range all {
		for i := range cs {
			cs[i].topics = feeding[cs[i].table]
		}
	}
	return all
}

func rowMatcherOf[T schemas.Body](t *table[T]) rowMatcher {
	return rowMatcher{table: t.name, rowBinary: t.rowBinary(), identify: func(d *schemas.Delivery) (rowKey, bool, error) {
		m, ok := d.Body.(T)
		if !ok {
			return rowKey{}, true, fmt.Errorf("is a %T", d.Body)
		}
		k, err := rowKeyIn(t, row[T]{d, m})
		return k, true, err
	}}
}

// incidentMatcher returns the rowMatcher of incidents. An incident has many records, so the key has the number of
// steps and the time of the record, too.
func incidentMatcher() rowMatcher {
	c := rowMatcherOf(incidents())
	byID := c.identify
	c.keySuffix = "concat(toString(step_count), '/', toString(revision))"
	c.identify = func(d *schemas.Delivery) (rowKey, bool, error) {
		k, hasRow, err := byID(d)
		if i, ok := d.Body.(*pb.Incident); ok && err == nil {
			suffix := strconv.Itoa(int(i.GetStepCount())) + "/" + strconv.FormatInt(i.GetUpdated().AsTime().UnixMilli(), 10)
			k.key, err = suffixedKey(k.key, suffix)
		}
		return k, hasRow, err
	}
	return c
}

// rowKeyIn returns the key of a row in a table.
func rowKeyIn[T any](t *table[T], r row[T]) (k rowKey, err error) {
	if k.key, err = parseID(t.id(r)); err != nil {
		return k, err
	}
	ts := t.ts(r)
	if _, err := toMillis(ts); err != nil {
		return k, err
	}
	k.month = monthTag(ts.AsTime().Year(), int(ts.AsTime().Month()))
	return k, nil
}

// suffixedKey returns the key of a row with a suffix.
func suffixedKey(id match.Key, suffix string) (match.Key, error) {
	return parseID(schemas.ID(hex.EncodeToString(id[:]), suffix))
}

// keyOf returns the key of a row.
func (c *rowMatcher) keyOf(id, suffix string) (match.Key, error) {
	key, err := parseID(id)
	if err == nil && c.keySuffix != "" {
		key, err = suffixedKey(key, suffix)
	}
	return key, err
}

// suffixOrEmpty returns SQL for the suffix of the key, or for an empty string.
func (c *rowMatcher) suffixOrEmpty() string { return cmp.Or(c.keySuffix, "''") }

// withoutPositions returns SQL that excludes the rows of positions, which three of the tables have.
func (c *rowMatcher) withoutPositions() string {
	switch c.table {
	case "audit_log", "duplication_log", "bit_log":
		return " AND account != ''"
	}
	return ""
}

// inconsistent returns SQL that is true for a row that no program inserted: its sum is 0 although a hash or the
// value of a later column shows that it was inserted with a sum, or it is a position although it has an account.
func (c *rowMatcher) inconsistent() string {
	switch c.table {
	case "audit_log":
		return "sum = 0 AND (hash != 0 OR report != 0) OR position != 0"
	case "duplication_log", "bit_log":
		return "sum = 0 AND hash != 0 OR position != 0"
	case "admin_log":
		return "sum = 0 AND (hash != 0 OR incident != '' OR seen != '')"
	case "policy_history":
		return "sum = 0 AND (hash != 0 OR file_sha256 != '')"
	}
	return "sum = 0 AND hash != 0"
}
