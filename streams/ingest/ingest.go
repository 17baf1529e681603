// Package ingest takes events over HTTP: POST /v1/changes for Changes, as CloudEvents or as they are, and
// POST /v1/notifications/s3 for what object stores tell of themselves.
//
// What is answered with 202 has been acknowledged by Kafka, all of it. A batch with a fault in any of its events is
// refused as a whole, and the faults of its events are listed, 100 at most. Where Kafka does not acknowledge, the answer is 503:
// some of the batch may be written, and all of it is to be sent again, which is harmless, since ids are functions
// of what events say. The package publishes through a small interface and knows nothing of Kafka.
package ingest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/retry"
)

// A Publisher publishes messages, and returns when all of them are acknowledged. An error means that some may not be.
type Publisher interface {
	Publish(ctx context.Context, msgs ...schemas.Message) error
}

// Stores says whether an account has a store.
type Stores interface {
	HasStore(account, store string) bool
}

// Config says who may send what. Zero values take the defaults in brackets.
type Config struct {
	// Tokens are who may send. Without any everybody may, for every account: whoever listens makes sure that
	// nobody else can.
	Tokens []Token
	// MaxBody bounds the bytes of a request's body [4 MiB], MaxEvents the events of a batch [1000].
	MaxBody   int64
	MaxEvents int
	// Concurrency bounds the requests that are being read, handled or answered [64]; others are refused with 503.
	Concurrency int
	// Memory bounds the bytes that these requests take together from the time that their bodies are read until their
	// answers are written [256 MiB]. Each counts with what a body of its size takes at most, some 16 times the size, or
	// with all of Memory if that is less. One that finds no room is refused with 503.
	Memory int64
	// readTimeout is how long a body may take to come [30 s], roomTimeout how long it may wait for memory [1 s],
	// publishTimeout how long Kafka may take [10 s], writeTimeout how long a client may take to read its answer [10 s].
	readTimeout, roomTimeout, publishTimeout, writeTimeout time.Duration
	// now is the clock; nil: the machine's.
	now func() time.Time
}

// A Handler answers the requests. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	tokens  []hashed
	out     Publisher
	stores  Stores
	metrics *Metrics
	log     *slog.Logger
	slots   chan struct{}
	room    *semaphore.Weighted // of cfg.Memory bytes
}

var _ http.Handler = (*Handler)(nil)

// New returns a Handler. metrics may be nil.
func New(cfg Config, out Publisher, stores Stores, metrics *Metrics, log *slog.Logger) (*Handler, error) {
	if out == nil || stores == nil || log == nil {
		return nil, errors.New("ingest: publisher, stores or log are missing")
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 4<<20)
	cfg.MaxEvents = cmp.Or(cfg.MaxEvents, 1000)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 64)
	cfg.Memory = cmp.Or(cfg.Memory, 256<<20)
	cfg.roomTimeout = cmp.Or(cfg.roomTimeout, time.Second)
	cfg.readTimeout = cmp.Or(cfg.readTimeout, 30*time.Second)
	cfg.publishTimeout = cmp.Or(cfg.publishTimeout, 10*time.Second)
	cfg.writeTimeout = cmp.Or(cfg.writeTimeout, 10*time.Second)
	if cfg.now == nil {
		cfg.now = time.Now
	}
	tokens, err := hashTokens(cfg.Tokens)
	if err != nil {
		return nil, err
	}
	cfg.Tokens = nil // only their hashes are kept
	return &Handler{cfg: cfg, tokens: tokens, out: out, stores: stores, metrics: metrics, log: log,
		slots: make(chan struct{}, cfg.Concurrency), room: semaphore.NewWeighted(cfg.Memory)}, nil
}

// The paths.
const (
	pathChanges       = "/v1/changes"
	pathNotifications = "/v1/notifications/s3"
)

// retryBusy and retryKafka are after how many seconds a request is to be sent again.
const (
	retryBusy  = 1
	retryKafka = 5
)

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var take func(request) (any, *problem)
	switch r.URL.Path {
	case pathChanges:
		take = h.changes
	case pathNotifications:
		take = h.notifications
	default:
		h.answer(w, r, nil, refusal(http.StatusNotFound, "not-found", "there is nothing here: the paths are %s and %s", pathChanges, pathNotifications))
		return
	}
	if p := h.serve(w, r, take); p != nil {
		h.answer(w, r, nil, p)
	}
}

// A request is one that was let in, and whose body was read.
type request struct {
	*http.Request
	sender sender
	body   []byte
}

// serve lets a request in, handles and answers it. A problem is still to be answered: it takes next to no memory.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, take func(request) (any, *problem)) *problem {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return refusal(http.StatusMethodNotAllowed, "method", "%s is not allowed here, only POST", r.Method)
	}
	sender, ok := h.authorise(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="millrace"`)
		return refusal(http.StatusUnauthorized, "token", "a token is wanted, as Authorization: Bearer TOKEN")
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return refusal(http.StatusServiceUnavailable, "busy", "%d requests are being handled, which is the limit", h.cfg.Concurrency).after(retryBusy)
	}
	h.metrics.inFlight(1)
	defer h.metrics.inFlight(-1)
	body, p := h.read(w, r)
	if p != nil {
		return p
	}
	weight := h.weight(len(body))
	ctx, cancel := context.WithTimeout(r.Context(), h.cfg.roomTimeout)
	defer cancel()
	if h.room.Acquire(ctx, weight) != nil {
		return refusal(http.StatusServiceUnavailable, "busy",
			"the requests that are being handled take all of %d bytes of memory", h.cfg.Memory).after(retryBusy)
	}
	defer h.room.Release(weight)
	out, p := take(request{r, sender, body})
	h.answer(w, r, out, p)
	return nil
}

// weight is how many bytes a request with a body of n bytes takes at most. Most is taken by Changes with many short
// properties.
func (h *Handler) weight(n int) int64 {
	events := min(n/2, h.cfg.MaxEvents) // of two bytes at least
	return min(16*int64(n)+4096*int64(events), h.cfg.Memory)
}

// read reads a body, which must come in time and be no larger than it may.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, *problem) {
	if e := r.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		w.Header().Set("Accept-Encoding", "identity")
		return nil, refusal(http.StatusUnsupportedMediaType, "encoding", "Content-Encoding is %.40q, want none", e)
	}
	large := func() *problem {
		return refusal(http.StatusRequestEntityTooLarge, "too-large", "the body is larger than %d bytes", h.cfg.MaxBody)
	}
	if r.ContentLength > h.cfg.MaxBody {
		return nil, large()
	}
	// Not every ResponseWriter has deadlines; the server's own hold then.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(h.cfg.readTimeout))
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }() // or it would end the request while Kafka is waited for
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return nil, large()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refusal(http.StatusRequestTimeout, "slow", "the body did not come within %v", h.cfg.readTimeout)
	case err != nil:
		return nil, refusal(http.StatusBadRequest, "broken", "the body did not come: %v", err)
	}
	return body, nil
}

// publish publishes msgs, and says what is wrong where they are not acknowledged.
func (h *Handler) publish(r request, way string, msgs []schemas.Message) *problem {
	if len(msgs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.cfg.publishTimeout, errKafkaSlow)
	defer cancel()
	err := h.out.Publish(ctx, msgs...)
	if err == nil {
		h.metrics.events(way, outcomeWritten, len(msgs))
		return nil
	}
	h.metrics.events(way, outcomeFailed, len(msgs))
	h.log.Warn("events were not acknowledged", "way", way, "events", len(msgs), "account", r.sender.account, "err", err)
	if retry.IsPermanent(err) {
		return refusal(http.StatusInternalServerError, "refused", "Kafka refuses what was sent, and would again: %v", err)
	}
	return refusal(http.StatusServiceUnavailable, "kafka",
		"Kafka did not acknowledge all of what was sent. Some of it may be written; send all of it again, which tells of nothing twice").after(retryKafka)
}

var errKafkaSlow = fmt.Errorf("kafka took too long (%w)", context.DeadlineExceeded)

// answer writes what came of a request.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, body any, p *problem) {
	code := http.StatusAccepted
	w.Header().Set("Content-Type", "application/json")
	if p != nil {
		code = p.Status
		w.Header().Set("Content-Type", "application/problem+json")
		if p.retry > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(p.retry))
		}
	}
	h.metrics.request(r.URL.Path, code)
	// It holds until the server sets its own for the next request: some of the answer is written after this returns.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.cfg.writeTimeout))
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	if p != nil {
		body = p
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		h.log.Debug("answer", "path", r.URL.Path, "err", err) // the client has gone
	}
}
