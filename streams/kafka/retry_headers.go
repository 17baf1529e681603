package kafka

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/schemas"
)

// headerPrefix is the prefix of schemas.TrailTopic and the other retry headers. No other header has it.
const headerPrefix = "millrace-"

const (
	maxHistory = 8    // entries; the first one and the newest ones are kept
	maxError   = 1024 // bytes of an error text in the history
	maxStack   = 8192 // bytes of an error text in its own header
	// maxHistoryBytes is larger than any history that this package writes, with escapes.
	maxHistoryBytes = 128 << 10
)

// retryHeaders are the parsed headers that record earlier deliveries of a record.
type retryHeaders struct {
	topic       schemas.Topic // original topic; empty if no header names it
	partition   int32         // -1: never on its topic (an output with a due time)
	offset      int64
	timestamp   time.Time
	role        schemas.Role
	attempts    int // failed deliveries that count as attempts
	waits       int
	waitsBy     map[string]int // of waits, those with a cause; never modified in place
	unavailable int
	due         time.Time
	class       string
	err         string
	history     []failure
}

// A failure is one entry of the history. Equal consecutive failures share an entry.
type failure struct {
	Attempt int       `json:"attempt"`
	Class   string    `json:"class"`
	Error   string    `json:"error"`
	By      string    `json:"by,omitempty"` // role, program and version
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Times   int       `json:"times"`
}

// parseRetryHeaders parses headers. It ignores invalid values: a message is not rejected because its retry
// headers are damaged.
func parseRetryHeaders(headers []kgo.RecordHeader) retryHeaders {
	t := retryHeaders{partition: -1, offset: -1}
	for _, h := range headers {
		if !strings.HasPrefix(h.Key, headerPrefix) {
			continue
		}
		v := string(h.Value)
		n, numErr := strconv.ParseInt(v, 10, 64)
		switch h.Key {
		case schemas.TrailTopic:
			t.topic = schemas.Topic(v)
		case schemas.TrailRole:
			t.role = schemas.Role(v)
		case schemas.TrailClass:
			t.class = v
		case schemas.TrailError:
			t.err = v
		case schemas.TrailDue:
			t.due, _ = time.Parse(time.RFC3339Nano, v)
		case schemas.TrailWaitsFor:
			t.waitsBy = parseWaits(v)
		case schemas.TrailHistory:
			if len(h.Value) > maxHistoryBytes || json.Unmarshal(h.Value, &t.history) != nil {
				t.history = nil
			}
		}
		if numErr == nil {
			t.setNumber(h.Key, n)
		}
	}
	return t
}

func (t *retryHeaders) setNumber(key string, n int64) {
	switch key {
	case schemas.TrailPartition:
		t.partition = int32(n)
	case schemas.TrailOffset:
		t.offset = n
	case schemas.TrailTimestamp:
		t.timestamp = time.UnixMilli(n)
	case schemas.TrailAttempts:
		t.attempts = int(max(n, 0))
	case schemas.TrailWaits:
		t.waits = int(max(n, 0))
	case schemas.TrailUnavailable:
		t.unavailable = int(max(n, 0))
	}
}

// apply returns old with its retry headers replaced by t.
func (t retryHeaders) apply(old []kgo.RecordHeader) []kgo.RecordHeader {
	hs := make([]kgo.RecordHeader, 0, len(old)+13)
	for _, h := range old {
		if !strings.HasPrefix(h.Key, headerPrefix) {
			hs = append(hs, h)
		}
	}
	text := func(key, value string) {
		if value != "" {
			hs = append(hs, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
	}
	number := func(key string, n int64) { text(key, strconv.FormatInt(n, 10)) }
	text(schemas.TrailTopic, string(t.topic))
	number(schemas.TrailPartition, int64(t.partition))
	number(schemas.TrailOffset, t.offset)
	if !t.timestamp.IsZero() {
		number(schemas.TrailTimestamp, t.timestamp.UnixMilli())
	}
	text(schemas.TrailRole, string(t.role))
	number(schemas.TrailAttempts, int64(t.attempts))
	number(schemas.TrailWaits, int64(t.waits))
	text(schemas.TrailWaitsFor, formatWaits(t.waitsBy))
	number(schemas.TrailUnavailable, int64(t.unavailable))
	if !t.due.IsZero() {
		text(schemas.TrailDue, t.due.UTC().Format(time.RFC3339Nano))
	}
	text(schemas.TrailClass, t.class)
	text(schemas.TrailError, cut(t.err, maxStack))
	if len(t.history) > 0 {
		b, err := json.Marshal(t.history)
		if err == nil { // a slice of plain fields always encodes
			text(schemas.TrailHistory, string(b))
		}
	}
	return hs
}

// addWait counts a wait for cause, and returns the number of earlier ones.
func (t *retryHeaders) addWait(cause string) (before int) {
	before = t.waits
	t.waits++
	if cause == "" {
		return before
	}
	n, known := t.waitsBy[cause]
	if !known && len(t.waitsBy) >= schemas.MaxCauses {
		return before
	}
	by := maps.Clone(t.waitsBy)
	if by == nil {
		by = map[string]int{}
	}
	by[cause] = n + 1
	t.waitsBy = by
	return n
}

// maxCause is the maximum length of a cause in bytes. Longer ones are ignored.
const maxCause = 64

// formatWaits returns the header value of waits by cause. parseWaits is its inverse.
func formatWaits(by map[string]int) string {
	var words []string
	for _, cause := range slices.Sorted(maps.Keys(by)) {
		words = append(words, cause+"="+strconv.Itoa(by[cause]))
	}
	return strings.Join(words, " ")
}

func parseWaits(text string) map[string]int {
	var by map[string]int
	for _, word := range strings.Fields(text) {
		cause, count, ok := strings.Cut(word, "=")
		n, err := strconv.Atoi(count)
		if !ok || err != nil || n <= 0 || len(cause) > maxCause || len(by) >= schemas.MaxCauses {
			continue
		}
		if by == nil {
			by = map[string]int{}
		}
		by[cause] = n
	}
	return by
}

// addFailure adds a failure to the history, which keeps at most maxHistory entries.
func (t *retryHeaders) addFailure(f failure) {
	f.Error = cut(f.Error, maxError)
	if n := len(t.history); n > 0 {
		last := &t.history[n-1]
		if last.Class == f.Class && last.Error == f.Error && last.By == f.By {
			last.Attempt, last.Last, last.Times = f.Attempt, f.Last, last.Times+1
			return
		}
	}
	h := append(append([]failure(nil), t.history...), f)
	if len(h) > maxHistory {
		h = append(h[:1], h[len(h)-maxHistory+1:]...)
	}
	t.history = h
}

// cut shortens s to at most n bytes of valid UTF-8.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	s = s[:n]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}
