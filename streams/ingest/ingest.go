// Package ingest accepts events over HTTP: POST /v1/changes for Changes, bare or as CloudEvents, and
// POST /v1/notifications/s3 for notifications of object stores.
//
// Status 202 means that Kafka has acknowledged all events of the request. If any event of a batch has a fault, the
// whole batch is rejected, with a list of at most 100 faults. Status 503 means that Kafka did not acknowledge all
// events: some may have been written, and the client must send the whole request again. That is idempotent, because the
// id of an event is a function of its content. The package publishes through a small interface and does not depend on
// Kafka.
//
// An event about an item of a store that is a destination is a claim about what millrace itself writes: it becomes a
// hint, and the role publishes what the store shows (see hint.Claim).
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

// Stores reports whether an account has a store, and whether the policy copies to the store for a space.
type Stores interface {
	HasStore(account, store string) bool
	IsDestination(account, space, store string) bool
}

// Config holds the settings of a Handler. Zero values mean the defaults in brackets.
type Config struct {
	// Tokens are the accepted tokens. Without tokens, everyone who can connect may send events for every account, so the
	// caller must restrict access to the listener.
	Tokens []Token
	// MaxBody is the largest request body in bytes [4 MiB], MaxEvents the largest number of events in a batch [1000].
	MaxBody   int64
	MaxEvents int
	// Concurrency is the largest number of requests in progress [64]. Others are rejected with status 503.
	Concurrency int
	// Memory is the memory limit in bytes for all requests together, from reading the body to writing the response
	// [256 MiB]. Each request counts with the largest memory use of a body of its size, about 16 times the size, but not
	// with more than Memory. Requests that exceed the limit are rejected with status 503.
	Memory int64
	// readTimeout is the time limit for reading a body [30 s], memoryTimeout for waiting for memory [1 s], publishTimeout
	// for publishing [10 s], and writeTimeout for writing the response [10 s].
	readTimeout, memoryTimeout, publishTimeout, writeTimeout time.Duration
}

// A Handler serves the requests. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	tokens  []hashed
	out     schemas.Publisher
	stores  Stores
	metrics *Metrics
	log     *slog.Logger
	slots   chan struct{}
	memory  *semaphore.Weighted // of cfg.Memory bytes
}

var _ http.Handler = (*Handler)(nil)

// New returns a Handler. metrics may be nil.
func New(cfg Config, out schemas.Publisher, stores Stores, metrics *Metrics, log *slog.Logger) (*Handler, error) {
	if out == nil || stores == nil || log == nil {
		return nil, errors.New("ingest: publisher, stores or log are missing")
	}
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 4<<20)
	cfg.MaxEvents = cmp.Or(cfg.MaxEvents, 1000)
	cfg.Concurrency = cmp.Or(cfg.Concurrency, 64)
	cfg.Memory = cmp.Or(cfg.Memory, 256<<20)
	cfg.memoryTimeout = cmp.Or(cfg.memoryTimeout, time.Second)
	cfg.readTimeout = cmp.Or(cfg.readTimeout, 30*time.Second)
	cfg.publishTimeout = cmp.Or(cfg.publishTimeout, 10*time.Second)
	cfg.writeTimeout = cmp.Or(cfg.writeTimeout, 10*time.Second)
	tokens, err := hashTokens(cfg.Tokens)
	if err != nil {
		return nil, err
	}
	cfg.Tokens = nil // keep only the hashes
	return &Handler{cfg: cfg, tokens: tokens, out: out, stores: stores, metrics: metrics, log: log,
		slots: make(chan struct{}, cfg.Concurrency), memory: semaphore.NewWeighted(cfg.Memory)}, nil
}

// The paths.
const (
	pathChanges       = "/v1/changes"
	pathNotifications = "/v1/notifications/s3"
)

// retryBusy and retryKafka are values of Retry-After in seconds.
const (
	retryBusy  = 1
	retryKafka = 5
)

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var handle func(request) (any, *problem)
	switch r.URL.Path {
	case pathChanges:
		handle = h.changes
	case pathNotifications:
		handle = h.notifications
	default:
		h.answer(w, r, nil, refusal(http.StatusNotFound, "not-found", "unknown path: the paths are %s and %s",
			pathChanges, pathNotifications))
		return
	}
	if p := h.serve(w, r, handle); p != nil {
		h.answer(w, r, nil, p)
	}
}

// A request is an authorised request with its body.
type request struct {
	*http.Request
	sender sender
	body   []byte
}

// serve authorises, reads, handles and answers a request. If it returns a problem, the caller must answer with it,
// which needs almost no memory.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, handle func(request) (any, *problem)) *problem {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return refusal(http.StatusMethodNotAllowed, "method", "%s is not allowed here, only POST", r.Method)
	}
	sender, ok := h.authorise(r)
	if !ok {
		w.Header().Set("WWW-Authenticate", `Bearer realm="millrace"`)
		return refusal(http.StatusUnauthorized, "token", "a token is required, as Authorization: Bearer TOKEN")
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	default:
		return refusal(http.StatusServiceUnavailable, "busy", "%d requests are being handled, which is the limit",
			h.cfg.Concurrency).retryAfter(retryBusy)
	}
	h.metrics.inFlight(1)
	defer h.metrics.inFlight(-1)
	body, p := h.read(w, r)
	if p != nil {
		return p
	}
	// A client that disconnects does not stop the publishing: versitygw waits for three seconds and never sends a
	// notification again.
	r = r.WithContext(context.WithoutCancel(r.Context()))
	weight := h.weight(len(body))
	ctx, cancel := context.WithTimeout(r.Context(), h.cfg.memoryTimeout)
	defer cancel()
	if h.memory.Acquire(ctx, weight) != nil {
		return refusal(http.StatusServiceUnavailable, "busy",
			"the requests in progress use all of the %d bytes of memory", h.cfg.Memory).retryAfter(retryBusy)
	}
	defer h.memory.Release(weight)
	out, p := handle(request{r, sender, body})
	h.answer(w, r, out, p)
	return nil
}

// weight returns the largest memory use, in bytes, of a request with a body of n bytes. Changes with many short
// properties use most.
func (h *Handler) weight(n int) int64 {
	events := min(n/2, h.cfg.MaxEvents) // an event has at least two bytes
	return min(16*int64(n)+4096*int64(events), h.cfg.Memory)
}

// read reads the body within the limits of time and size.
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
	// Not every ResponseWriter supports deadlines. Without support, those of the server apply.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(h.cfg.readTimeout))
	defer func() { _ = conn.SetReadDeadline(time.Time{}) }() // or it would cancel the request during publishing
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, h.cfg.MaxBody))
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return nil, large()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, refusal(http.StatusRequestTimeout, "slow", "the body was not received within %v", h.cfg.readTimeout)
	case err != nil:
		return nil, refusal(http.StatusBadRequest, "broken", "read the body: %v", err)
	}
	return body, nil
}

// publish publishes msgs. It returns a problem if not all of them are acknowledged.
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
	h.log.Warn("publish events", "way", way, "events", len(msgs), "account", r.sender.account, "err", err)
	if retry.IsPermanent(err) {
		return refusal(http.StatusInternalServerError, "refused", "Kafka rejects the events permanently: %v", err)
	}
	return refusal(http.StatusServiceUnavailable, "kafka",
		"Kafka did not acknowledge all events. Some may have been written. Send all of them again, which is idempotent").
		retryAfter(retryKafka)
}

var errKafkaSlow = fmt.Errorf("kafka took too long (%w)", context.DeadlineExceeded)

// answer writes the response: body with status 202 or, if p is not nil, the problem.
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
	// The server writes a part of the response after this returns. The deadline applies until the server sets the one of
	// the next request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.cfg.writeTimeout))
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	if p != nil {
		body = p
	}
	if err := json.NewEncoder(w).Encode(body); err != nil {
		h.log.Debug("write response", "path", r.URL.Path, "err", err) // the client has disconnected
	}
}
