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

// headerPrefix is the prefix of schemas.HeaderOriginTopic and the other retry headers. No other header has it.
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
	h := retryHeaders{partition: -1, offset: -1}
	for _, header := range headers {
		if !strings.HasPrefix(header.Key, headerPrefix) {
			continue
		}
		v := string(header.Value)
		n, numErr := strconv.ParseInt(v, 10, 64)
		switch header.Key {
		case schemas.HeaderOriginTopic:
			h.topic = schemas.Topic(v)
		case schemas.HeaderRole:
			h.role = schemas.Role(v)
		case schemas.HeaderClass:
			h.class = v
		case schemas.HeaderError:
			h.err = v
		case schemas.HeaderDue:
			h.due, _ = time.Parse(time.RFC3339Nano, v)
		case schemas.HeaderWaitsByCause:
			h.waitsBy = parseWaits(v)
		case schemas.HeaderHistory:
			if len(header.Value) > maxHistoryBytes || json.Unmarshal(header.Value, &h.history) != nil {
				h.history = nil
			}
		}
		if numErr == nil {
			h.setNumber(header.Key, n)
		}
	}
	return h
}

func (h *retryHeaders) setNumber(key string, n int64) {
	switch key {
	case schemas.HeaderOriginPartition:
		h.partition = int32(n)
	case schemas.HeaderOriginOffset:
		h.offset = n
	case schemas.HeaderOriginTimestamp:
		h.timestamp = time.UnixMilli(n)
	case schemas.HeaderAttempts:
		h.attempts = int(max(n, 0))
	case schemas.HeaderWaits:
		h.waits = int(max(n, 0))
	case schemas.HeaderUnavailable:
		h.unavailable = int(max(n, 0))
	}
}

// apply returns old with its retry headers replaced by h.
func (h retryHeaders) apply(old []kgo.RecordHeader) []kgo.RecordHeader {
	hs := make([]kgo.RecordHeader, 0, len(old)+13)
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
	text(schemas.HeaderOriginTopic, string(h.topic))
	number(schemas.HeaderOriginPartition, int64(h.partition))
	number(schemas.HeaderOriginOffset, h.offset)
	if !h.timestamp.IsZero() {
		number(schemas.HeaderOriginTimestamp, h.timestamp.UnixMilli())
	}
	text(schemas.HeaderRole, string(h.role))
	number(schemas.HeaderAttempts, int64(h.attempts))
	number(schemas.HeaderWaits, int64(h.waits))
	text(schemas.HeaderWaitsByCause, formatWaits(h.waitsBy))
	number(schemas.HeaderUnavailable, int64(h.unavailable))
	if !h.due.IsZero() {
		text(schemas.HeaderDue, h.due.UTC().Format(time.RFC3339Nano))
	}
	text(schemas.HeaderClass, h.class)
	text(schemas.HeaderError, cut(h.err, maxStack))
	if len(h.history) > 0 {
		b, err := json.Marshal(h.history)
		if err == nil { // a slice of plain fields always encodes
			text(schemas.HeaderHistory, string(b))
		}
	}
	return hs
}

// addWait counts a wait for cause, and returns the number of earlier ones.
func (h *retryHeaders) addWait(cause string) (before int) {
	before = h.waits
	h.waits++
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
func (h *retryHeaders) addFailure(f failure) {
	f.Error = cut(f.Error, maxError)
	if n := len(h.history); n > 0 {
		last := &h.history[n-1]
		if last.Class == f.Class && last.Error == f.Error && last.By == f.By {
			last.Attempt, last.Last, last.Times = f.Attempt, f.Last, last.Times+1
			return
		}
	}
	history := append(append([]failure(nil), h.history...), f)
	if len(history) > maxHistory {
		history = append(history[:1], history[len(history)-maxHistory+1:]...)
	}
	h.history = history
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
