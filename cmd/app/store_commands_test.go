package app

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/config"
	"github.com/millrace/millrace/cmd/precondition"
	"github.com/millrace/millrace/streams/storage/s3/s3test"
)

// Each configuration error has a state, and an error of one line with a remedy.
func TestCheckStoresOf(t *testing.T) {
	answer := func(status int, code string) func(*testing.T) string {
		return func(t *testing.T) string {
			s := s3test.New(s3test.Options{Before: func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(`<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>So it` + "\n" +
					` is.</Message><Region>eu-west-1</Region></Error>`))
				return true
			}})
			t.Cleanup(s.Close)
			return s.URL()
		}
	}
	fine := func(t *testing.T) string {
		s := s3test.New(s3test.Options{})
		t.Cleanup(s.Close)
		return s.URL()
	}
	t.Setenv("LOOK_KEY", "key")
	key := config.Credentials{AccessKey: config.FileSecret(written(t, "key")),
		SecretKey: config.FileSecret(written(t, "secret"))}
	for name, tt := range map[string]struct {
		endpoint func(t *testing.T) string
		change   func(c *config.Store)
		state    StoreState
		says     string
	}{
		"wrong key":    {answer(403, "InvalidAccessKeyId"), nil, storeUnavailable, "refuses the credentials"},
		"wrong secret": {answer(403, "SignatureDoesNotMatch"), nil, storeUnavailable, "refuses the credentials"},
		"unknown user": {answer(404, "XAdminUserNotFound"), nil, storeUnavailable, "refuses the credentials"},
		"not allowed":  {answer(403, "AccessDenied"), nil, storeError, "the bucket's policy"},
		"clock skew": {answer(403, "RequestTimeTooSkewed"), nil, storeUnavailable,
			"the clocks of this machine and of the service"},
		"other region": {answer(400, "AuthorizationHeaderMalformed"), nil, storeUnavailable,
			"the bucket's region is eu-west-1"},
		"no bucket": {fine, nil, storeUnavailable, `bucket "bucket" does not exist`},
		"no marker": {fine, func(c *config.Store) { c.Bucket, c.BucketPrefix = "", "b-" }, storeUnmarked,
			"millrace store init acme/s"},
		"no TLS there": {func(t *testing.T) string { return strings.Replace(fine(t), "http:", "https:", 1) }, nil,
			storeUnavailable, "does not speak TLS"},
		"nobody's cert": {secure, nil, storeUnavailable, "its certificate is not trusted"},
		"nobody there": {func(t *testing.T) string { return "http://" + free(t) }, nil, storeUnavailable,
			"no connection"},
		"no proxy": {fine, func(c *config.Store) { c.Proxy = "http://" + free(t) }, storeUnavailable,
			"check the endpoint, and the proxy"},
		"no secret": {fine, func(c *config.Store) { c.Credentials.SecretKey = config.FileSecret("/nowhere") },
			storeUnavailable, "credentials.secret_key"},
		"no CA": {fine, func(c *config.Store) { c.CA = "/nowhere" }, storeUnavailable, "ca: open /nowhere"},
		"CA that is none": {fine, func(c *config.Store) { c.CA = c.Credentials.AccessKey.String() }, storeUnavailable,
			"ca: "},
		"directory absent": {nil, func(c *config.Store) { c.Root = "/nowhere" }, storeUnavailable,
			"create or mount its root"},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Store{ID: "s", Driver: "file"}
			if tt.endpoint != nil {
				c = config.Store{ID: "s", Driver: "s3", Endpoint: tt.endpoint(t), Bucket: "bucket", PathStyle: true,
					Credentials: key}
			}
			if tt.change != nil {
				tt.change(&c)
			}
			cfg := &config.Config{Accounts: []config.Account{{ID: "acme", Stores: []config.Store{c}}}}
			views, err := InspectStores(t.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil || len(views) != 1 {
				t.Fatalf("CheckStoresOf = %+v, %v", views, err)
			}
			v := views[0]
			if said := v.Error + ": " + v.Remedy; v.State != tt.state || !strings.Contains(said, tt.says) ||
				strings.Contains(said, "\n") {
				t.Errorf("state %q, %q; want %q, a line with %q", v.State, said, tt.state, tt.says)
			}
			err = InitStore(t.Context(), cfg, slog.New(slog.DiscardHandler), StoreName{"acme", "s"})
			if mend := tt.state == storeUnavailable; errors.Is(err, precondition.Err) != mend {
				t.Errorf("InitStore: %v, that an operator must mend it: want %v", err, mend)
			}
		})
	}
}

func secure(t *testing.T) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// An initialised S3 store reports the capabilities of its service from the marker or a probe. The
// marker is updated only on request, and the marker of another store is refused.
func TestProbeStore(t *testing.T) {
	t.Parallel()
	s := s3test.New(s3test.Options{NoChecksums: true})
	t.Cleanup(s.Close)
	key := config.FileSecret(written(t, "k"))
	c := config.Store{ID: "s", Driver: "s3", Endpoint: s.URL(), BucketPrefix: "b-", PathStyle: true,
		Credentials: config.Credentials{AccessKey: key, SecretKey: key}}
	cfg := &config.Config{Accounts: []config.Account{{ID: "acme", Stores: []config.Store{c}}}}
	log, name := slog.New(slog.DiscardHandler), StoreName{"acme", "s"}
	if v, err := ProbeStore(t.Context(), cfg, log, name, false); err != nil || v.State == StoreOK ||
		len(s.Keys("b-millrace", "")) > 0 {
		t.Errorf("before it was made known: %+v, %v, keys %q", v, err, s.Keys("b-millrace", ""))
	}
	must(t, InitStore(t.Context(), cfg, log, name))
	is := func(v StoreInfo, name string) Capability {
		i := slices.IndexFunc(v.Capabilities, func(a Capability) bool { return a.Name == name })
		if i < 0 {
			t.Fatalf("no ability %q in %+v", name, v)
		}
		return v.Capabilities[i]
	}
	views, err := InspectStores(t.Context(), cfg, log, name)
	if err != nil || len(views) != 1 || views[0].State != StoreOK || views[0].Error != "" {
		t.Fatalf("CheckStoresOf = %+v, %v, want ok", views, err)
	}
	for ability, want := range map[string]string{"verifies sha256": "no", "conditional put": "yes", "versions": "no"} {
		if got, want := is(views[0], ability), (Capability{ability, want, originMarker}); got != want {
			t.Errorf("checked: %+v, want %+v", got, want)
		}
	}
	before, _ := s.Object("b-millrace", ".millrace/marker.json")
	v, err := ProbeStore(t.Context(), cfg, log, name, false)
	want := Capability{"verifies sha256", "no", originProbe}
	if got := is(v, want.Name); err != nil || got != want {
		t.Errorf("probed: %+v, %v, want %+v", got, err, want)
	}
	after, _ := s.Object("b-millrace", ".millrace/marker.json")
	if keys := s.Keys("b-millrace", ""); string(before) != string(after) || !json.Valid(after) || len(keys) != 1 {
		t.Errorf("a probe has left %s, was %s, beside %q", after, before, keys)
	}
	if v, err := ProbeStore(t.Context(), cfg, log, name, true); err != nil || v.State != StoreOK {
		t.Errorf("probed and recorded: %+v, %v", v, err)
	}
	cfg.Accounts[0].Stores[0].ID = "other"
	if v, err := ProbeStore(t.Context(), cfg, log, StoreName{"acme", "other"}, true); err != nil || v.State != storeOther {
		t.Errorf("another store's: %+v, %v, want state %q", v, err, storeOther)
	}
	if _, err := ProbeStore(t.Context(), cfg, log, name, true); !errors.Is(err, precondition.Err) {
		t.Errorf("a store that is not configured: %v, want precondition.Err", err)
	}
}

func TestRequireStore(t *testing.T) {
	cfg := &config.Config{Accounts: []config.Account{{ID: "acme", Stores: []config.Store{{ID: "1"}}}}}
	for name, ok := range map[StoreName]bool{{"acme", "1"}: true, {"acme", "2"}: false, {"other", "1"}: false} {
		if err := RequireStore(cfg, name); (err == nil) != ok || err != nil && !errors.Is(err, precondition.Err) {
			t.Errorf("%v: %v", name, err)
		}
	}
}
