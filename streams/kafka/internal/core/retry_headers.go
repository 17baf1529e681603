package core

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

// headerPrefix is the prefix of schemas.HeaderOriginTopic and the other retry headers. No other header has it.
const headerPrefix = "millrace-"

const (
	maxHistory = 8    // entries; the first one and the newest ones are kept
	maxError   = 1024 // bytes of an error text in the history
	maxStack   = 8192 // bytes of an error text in its own header
	// maxHistoryBytes is larger than any history that this package writes, with escapes.
	maxHistoryBytes = 128 << 10
)

// RetryHeaders are the parsed headers that record earlier deliveries of a record.
type RetryHeaders struct {
	Topic       schemas.Topic // original topic; empty if no header names it
	Partition   int32         // -1: never on its topic (an output with a due time)
	Offset      int64
	Timestamp   time.Time
	Role        schemas.Role
	Attempts    int // failed deliveries that count as attempts
	Waits       int
	waitsBy     map[string]int // of waits, those with a cause; never modified in place
	unavailable int
	// After is the time from the record in a lane to the next delivery. Writers of lanes set it, as their clocks may be
	// wrong. The Delayer turns it into Due, the earliest Kafka time of the delivery.
	After   time.Duration
	Due     time.Time
	Class   string
	Err     string
	History []Failure
}

// A Failure is one entry of the history. Equal consecutive failures share an entry.
type Failure struct {
	Attempt int       `json:"attempt"`
	Class   string    `json:"class"`
	Error   string    `json:"error"`
	By      string    `json:"by,omitempty"` // role, program and version
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Times   int       `json:"times"`
}

// ParseRetryHeaders parses headers. It ignores invalid values: a message is not rejected because its retry
// headers are damaged.
func ParseRetryHeaders(headers []kgo.RecordHeader) RetryHeaders {
	h := RetryHeaders{Partition: -1, Offset: -1}
	for _, header := range headers {
		if !strings.HasPrefix(header.Key, headerPrefix) {
			continue
		}
		v := string(header.Value)
		n, numErr := strconv.ParseInt(v, 10, 64)
		switch header.Key {
		case schemas.HeaderOriginTopic:
			h.Topic = schemas.Topic(v)
		case schemas.HeaderRole:
			h.Role = schemas.Role(v)
		case schemas.HeaderClass:
			h.Class = v
		case schemas.HeaderError:
			h.Err = v
		case schemas.HeaderAfter:
			h.After, _ = time.ParseDuration(v)
		case schemas.HeaderDue:
			h.Due, _ = time.Parse(time.RFC3339Nano, v)
		case schemas.HeaderWaitsByCause:
			h.waitsBy = parseWaits(v)
		case schemas.HeaderHistory:
			if len(header.Value) > maxHistoryBytes || json.Unmarshal(header.Value, &h.History) != nil {
				h.History = nil
			}
		}
		if numErr == nil {
			h.setNumber(header.Key, n)
		}
	}
	return h
}

// ParseWaiting parses the headers of a record in a lane. Due is set if the record has either.
func ParseWaiting(rec *kgo.Record) RetryHeaders {
	h := ParseRetryHeaders(rec.Headers)
	if h.After > 0 {
		h.Due, h.After = rec.Timestamp.Add(h.After), 0
	}
	return h
}

func (h *RetryHeaders) setNumber(key string, n int64) {
	switch key {
	case schemas.HeaderOriginPartition:
		h.Partition = int32(n)
	case schemas.HeaderOriginOffset:
		h.Offset = n
	case schemas.HeaderOriginTimestamp:
		h.Timestamp = time.UnixMilli(n)
	case schemas.HeaderAttempts:
		h.Attempts = int(max(n, 0))
	case schemas.HeaderWaits:
		h.Waits = int(max(n, 0))
	case schemas.HeaderUnavailable:
		h.unavailable = int(max(n, 0))
	}
}

// Apply returns old with its retry headers replaced by h.
func (h RetryHeaders) Apply(old []kgo.RecordHeader) []kgo.RecordHeader {
	hs := make([]kgo.RecordHeader, 0, len(old)+14)
	for _, header := range old {
		if !strings.HasPrefix(header.Key, headerPrefix) {
			hs = append(hs, header)
		}
	}
	text := func(key, value string) {
		if value != "" {
			hs = append(hs, kgo.RecordHeader{Key: key, Value: []byte(value)})
		}
	}
	number := func(key string, n int64) { text(key, strconv.FormatInt(n, 10)) }
	text(schemas.HeaderOriginTopic, string(h.Topic))
	number(schemas.HeaderOriginPartition, int64(h.Partition))
	number(schemas.HeaderOriginOffset, h.Offset)
	if !h.Timestamp.IsZero() {
		number(schemas.HeaderOriginTimestamp, h.Timestamp.UnixMilli())
	}
	text(schemas.HeaderRole, string(h.Role))
	number(schemas.HeaderAttempts, int64(h.Attempts))
	number(schemas.HeaderWaits, int64(h.Waits))
	text(schemas.HeaderWaitsByCause, formatWaits(h.waitsBy))
	number(schemas.HeaderUnavailable, int64(h.unavailable))
	if h.After > 0 {
		text(schemas.HeaderAfter, h.After.String())
	}
	if !h.Due.IsZero() {
		text(schemas.HeaderDue, h.Due.UTC().Format(time.RFC3339Nano))
	}
	text(schemas.HeaderClass, h.Class)
	text(schemas.HeaderError, cut(h.Err, maxStack))
	if len(h.History) > 0 {
		b, err := json.Marshal(h.History)
		if err == nil { // a slice of plain fields always encodes
			text(schemas.HeaderHistory, string(b))
		}
	}
	return hs
}

// addWait counts a wait for cause, and returns the number of earlier ones.
func (h *RetryHeaders) addWait(cause string) (before int) {
	before = h.Waits
	h.Waits++
	if cause == "" {
		return before
	}
	n, known := h.waitsBy[cause]
	if !known && len(h.waitsBy) >= schemas.MaxCauses {
		return before
	}
	by := maps.Clone(h.waitsBy)
	if by == nil {
		by = map[string]int{}
	}
	by[cause] = n + 1
	h.waitsBy = by
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
func (h *RetryHeaders) addFailure(f Failure) {
	f.Error = cut(f.Error, maxError)
	if n := len(h.History); n > 0 {
		last := &h.History[n-1]
		if last.Class == f.Class && last.Error == f.Error && last.By == f.By {
			last.Attempt, last.Last, last.Times = f.Attempt, f.Last, last.Times+1
			return
		}
	}
	history := append(append([]Failure(nil), h.History...), f)
	if len(history) > maxHistory {
		history = append(history[:1], history[len(history)-maxHistory+1:]...)
	}
	h.History = history
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
