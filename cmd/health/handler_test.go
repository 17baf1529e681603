package health

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/streams/kafka/metrics"
	"github.com/millrace/millrace/streams/storage/limit"
)

func get(t *testing.T, h http.Handler, method, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w.Code, w.Body.String()
}

func TestHandler(t *testing.T) {
	s := scene{states: []metrics.RoleState{member(schemas.RoleCopier, schemas.High, "p.duplication.high")}}
	h, one := s.monitor(stallAfter), limit.Closed
	h.c.Stores = func() []Store {
		return []Store{{Account: "acme", Store: "1", State: one},
			{Account: "acme", Store: "2", State: limit.Open, Since: time.Unix(1000, 0).UTC(),
				Cause: errors.New("input/output error")}}
	}
	srv := h.Handler(NewRegistry())
	codes := func() (got [3]int) {
		for i, path := range []string{"/startupz", "/readyz", "/livez"} {
			got[i], _ = get(t, srv, http.MethodGet, path)
		}
		return got
	}
	check := func(when string, want [3]int) {
		t.Helper()
		if got := codes(); got != want {
			t.Errorf("%s: got %v, want %v", when, got, want)
		}
	}
	check("before the first look", [3]int{503, 503, 200})
	s.states[0].Member = false
	h.Collect(t.Context())
	check("before it has joined", [3]int{503, 503, 200})
	s.states[0].Member = true
	check("joined", [3]int{200, 200, 200})
	one = limit.Open
	check("every store is unavailable", [3]int{200, 503, 200})
	one = limit.Closed
	check("one store is back", [3]int{200, 200, 200})
	s.states[0].Member = false
	check("out of its group: it has started all the same", [3]int{200, 503, 200})
	s.states[0].Member, s.ping = true, errors.New("refused")
	h.Collect(t.Context())
	check("ClickHouse is unavailable", [3]int{200, 503, 200})
	s.states[0].Stuck = 1
	check("stuck", [3]int{200, 503, 503})

	_, body := get(t, srv, http.MethodGet, "/livez")
	var got struct {
		Live, Ready, Started bool
		Reasons              []string
		Engines              map[string]string
		Roles                []struct {
			Role   string
			Member bool
			Stuck  int
		}
		Breakers []breakerReport
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	want := got
	want.Live, want.Ready, want.Started = false, false, true
	want.Reasons = []string{"clickhouse is unavailable: refused",
		"role copier: 1 tasks have not ended after they were cancelled"}
	want.Engines = map[string]string{"kafka": "ok", "clickhouse": "refused"}
	want.Roles = want.Roles[:1]
	want.Roles[0].Role, want.Roles[0].Member, want.Roles[0].Stuck = "copier", true, 1
	want.Breakers = []breakerReport{{Store: "acme/1", State: limit.Closed.String()},
		{Store: "acme/2", State: limit.Open.String(), Since: time.Unix(1000, 0).UTC(), Cause: "input/output error"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v\nin %s", got, want, body)
	}
	if code, body := get(t, srv, http.MethodGet, "/metrics"); code != 200 || !strings.Contains(body, "go_goroutines ") ||
		!strings.Contains(body, "process_cpu_seconds_total ") {
		t.Errorf("metrics: got %d: %.200s", code, body)
	}
	for path, want := range map[string]int{"/": 404, "/debug/pprof/": 404, "/metrics": 405, "/livez": 405} {
		method := http.MethodGet
		if want == 405 {
			method = http.MethodPost
		}
		if code, _ := get(t, srv, method, path); code != want {
			t.Errorf("%s %s: got %d, want %d", method, path, code, want)
		}
	}
}
