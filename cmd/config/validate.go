package config

import (
	"fmt"
	"net"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/schedule"
)

var (
	idForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)
	prefixForm = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$`)
	laneForm   = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
	bucketForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`) // old AWS buckets have such names
	// The driver stores its own data in bucket PREFIXmillrace.
	bucketPrefixForm = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]{0,54})?$`)
	databaseForm     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`)
)

// report records a fault: the path of the setting, its value (nil: not shown), and the reason.
type report func(key string, value any, reason string)

// validate reports the faults of settings that have the right types.
func validate(c *Config, fault report) {
	validateWords("", reflect.ValueOf(c).Elem(), fault)
	validateAccounts(c.Accounts, fault)
	validateKafka(&c.Kafka, fault)
	validateClickHouse(&c.ClickHouse, fault)
	validateLanes(c.Delay.Lanes, fault)
	if c.Duplication.LargeThreshold <= 0 {
		fault("duplication.large_threshold", c.Duplication.LargeThreshold, "want more than 0 bytes")
	}
	increasing("duplication.wait", c.Duplication.Wait, fault)
	validatePolicies(c.Policies, fault)
	validateFixity(c, fault)
	validateSweep(c, fault)
	notNegative("reconcile.settle", c.Reconcile.Settle, fault)
	notNegative("deletes.delay", c.Deletes.Delay, fault)
	between("deletes.max_count", c.Deletes.MaxCount, 1_000_000_000_000, fault)
	between("replaced.max_count", c.Replaced.MaxCount, 1_000_000_000_000, fault)
	validateRoles(&c.Roles, fault)
	notNegative("trim.keep", c.Trim.Keep, fault)
	atLeast("health.stall_after", c.Health.StallAfter, time.Second, fault)
	if c.HTTP.Listen != "" {
		listenAddress("http.listen", c.HTTP.Listen, fault)
	}
	validateIngest(c, fault)
	validateOutbox(c.Outbox, fault)
	validateJobs(c, fault)
	validateTrace(c.Trace, fault)
	between("sink.rows", c.Sink.Rows, 10_000_000, fault)
	if c.Sink.Bytes < 1<<20 || c.Sink.Bytes > 4<<30 {
		fault("sink.bytes", c.Sink.Bytes, "want 1MiB to 4GiB")
	}
	positive("sink.age", c.Sink.Age, fault)
	between("sink.parts_per_second", c.Sink.PartsPerSecond, 100, fault)
	if c.Sink.Memory < 4<<20 || c.Sink.Memory > 16<<30 {
		fault("sink.memory", c.Sink.Memory, "want 4MiB to 16GiB")
	}
}

// CheckSchedule returns why a sweep or job, or a sweep over the spaces of a pattern, cannot have a schedule. The fixity
// sweep has a longest period.
func CheckSchedule(c *Config, name, spaces string, s schedule.Schedule) (err error) {
	fault := func(_ string, value any, reason string) { err = fmt.Errorf("%v: %s", value, reason) }
	if validateSchedule("", s, fault); name == fixitySweep {
		validateFixitySchedule("", s, c.Fixity.shortestPeriod(spaces), fault)
	}
	return err
}

// validateSchedule reports a period that is too short: what is due is looked for once a minute.
func validateSchedule(key string, s schedule.Schedule, fault report) {
	if s.ShorterThan(time.Minute) {
		fault(key, s, "want a period of 1m or more")
	}
}

func validateRoles(r *Roles, fault report) {
	for name, role := range map[string]Role{
		"copier": r.Copier, "checker": r.Checker, "deleter": r.Deleter, "ingester": r.Ingester,
	} {
		at := "roles." + name
		between(at+".workers", role.Workers, 4096, fault)
		between(at+".window", role.Window, 1<<20, fault)
		if role.Bytes < 1<<20 {
			fault(at+".bytes", role.Bytes, "want 1MiB or more")
		}
		if role.Reserved < 0 || role.Reserved >= max(role.Workers, 1) {
			fault(at+".reserved", role.Reserved, "want 0 or more, and fewer than workers: class low needs one")
		}
		oneClass := map[string]string{"deleter": "deletes", "ingester": "notifications"}
		if tasks := oneClass[name]; tasks != "" {
			if role.Large != 0 {
				fault(at+".large", role.Large, tasks+" have no large class")
			}
			if role.Reserved > 0 {
				fault(at+".reserved", role.Reserved, tasks+" have no class low")
			}
		} else {
			between(at+".large", role.Large, 4096, fault)
		}
	}
	between("roles.attempts", r.Attempts, 1000, fault)
	between("roles.high_weight", r.HighWeight, 1000, fault)
	atLeast("roles.stall", r.Stall, time.Second, fault)
	positive("roles.drain", r.Drain, fault)
	if r.Drain > MaxDrain {
		fault("roles.drain", formatDuration(r.Drain), "want at most "+formatDuration(MaxDrain)+": rebalances wait for it")
	}
}

// validatePolicies checks the settings of the policy folder.
func validatePolicies(p Policies, fault report) {
	if p.Interval != 0 {
		atLeast("policies.interval", p.Interval, time.Second, fault)
	}
	u, err := url.Parse(p.Folder)
	if p.InBucket() && (err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "") {
		fault("policies.folder", p.Folder, "want a directory or s3://BUCKET/PREFIX")
	}
	switch u, err := url.Parse(p.Endpoint); {
	case hasPassword(p.Endpoint):
		fault("policies.endpoint", nil, "has a password in clear text: the credentials are those of the AWS tools")
	case p.Endpoint != "" && !p.InBucket():
		fault("policies.endpoint", p.Endpoint, "is only for a folder s3://BUCKET/PREFIX")
	case p.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https"):
		fault("policies.endpoint", p.Endpoint, "want a URL such as https://s3.example.org")
	}
}

func validateTrace(t Trace, fault report) {
	if hasPassword(t.Endpoint) {
		fault("trace.endpoint", nil, "has a password in clear text: the collector must accept spans without one")
	} else if t.Endpoint != "" {
		u, err := url.Parse(t.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			fault("trace.endpoint", t.Endpoint, "want a URL such as http://localhost:4318")
		}
	}
}

// hasPassword reports whether a URL has a password, which would be printed with it.
func hasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, has := u.User.Password()
	return has
}

// validateWords checks the settings that have a fixed set of values, in all tables. An empty value
// is accepted here: the checks of the settings refuse it if they require one.
func validateWords(path string, v reflect.Value, fault report) {
	for _, f := range fieldsOf(v.Type()) {
		at := strings.TrimPrefix(path+"."+keyOf(f), ".")
		value := v.FieldByIndex(f.Index)
		switch words := f.Tag.Get("oneof"); {
		case isTable(f.Type):
			validateWords(at, value, fault)
		case isTables(f.Type):
			for i := range value.Len() {
				validateWords(at+"["+strconv.Itoa(i)+"]", value.Index(i), fault)
			}
		case words != "" && value.String() != "" && !slices.Contains(strings.Split(words, "|"), value.String()):
			reason := "want one of " + strings.ReplaceAll(words, "|", ", ")
			if keyOf(f) == "driver" {
				reason = "unknown driver; " + reason
			}
			fault(at, value.String(), reason)
		}
	}
}

func validateAccounts(accounts []Account, fault report) {
	seen := map[string]string{}  // account to path
	roots := map[string]string{} // root to path
	for i, a := range accounts {
		at := fmt.Sprintf("accounts[%d]", i)
		identifier(at+".id", a.ID, seen, fault)
		if len(a.Stores) == 0 {
			fault(at+".stores", nil, "is empty: an account needs at least one store")
		}
		validateLimits(at+".limits", a.Limits, fault)
		stores, primary := map[string]string{}, ""
		for j, s := range a.Stores {
			at := fmt.Sprintf("%s.stores[%d]", at, j)
			identifier(at+".id", s.ID, stores, fault)
			validateLocation(at, s, roots, fault)
			validateLimits(at+".limits", s.Limits, fault)
			limit(at+".requests.at_once", s.Requests.AtOnce, fault)
			limit(at+".requests.per_second", s.Requests.PerSecond, fault)
			if s.SamplePercent < 0 || s.SamplePercent > 100 || s.SamplePercent > 0 && s.Read != "sampled" {
				fault(at+".sample_percent", s.SamplePercent, "want 1 to 100, with read: sampled")
			}
			validateLayout(at, s, fault)
			if !s.Primary {
				continue
			}
			if primary != "" {
				fault(at+".primary", s.Primary, "an account has one primary store, which is "+primary)
			}
			primary = at
		}
	}
}

// identifier checks an id, and that it is unique.
func identifier(at, id string, seen map[string]string, fault report) {
	switch other, taken := seen[id]; {
	case id == "":
		fault(at, nil, "is missing")
	case !idForm.MatchString(id):
		fault(at, id, "want letters, digits, dots, dashes and underscores, a letter or digit first")
	case taken:
		fault(at, id, "is taken by "+other)
	default:
		seen[id] = at
	}
}

// addresses checks a list of addresses, host:port.
func addresses(at string, list []string, fault report) {
	if len(list) == 0 {
		fault(at, nil, "is empty: want at least one address, host:port")
	}
	for i, a := range list {
		host, port, err := net.SplitHostPort(a)
		n, numErr := strconv.Atoi(port)
		if err != nil || host == "" || numErr != nil || n < 1 || n > 65535 {
			fault(fmt.Sprintf("%s[%d]", at, i), a, "want host:port")
		} else if slices.Contains(list[:i], a) {
			fault(fmt.Sprintf("%s[%d]", at, i), a, "is listed twice")
		}
	}
}

// listenAddress checks one address, host:port.
func listenAddress(at, address string, fault report) {
	addresses(at, []string{address}, func(_ string, value any, reason string) { fault(at, value, reason) })
}

// increasing checks a list of intervals, each at least as long as the one before.
func increasing(at string, steps []time.Duration, fault report) {
	if len(steps) == 0 {
		fault(at, nil, "is empty: want at least one duration")
	}
	for i, d := range steps {
		positive(fmt.Sprintf("%s[%d]", at, i), d, fault)
		if i > 0 && d > 0 && d < steps[i-1] {
			fault(fmt.Sprintf("%s[%d]", at, i), formatDuration(d), "is shorter than the interval before")
		}
	}
}

func positive(at string, d time.Duration, fault report) {
	if d <= 0 {
		fault(at, formatDuration(d), "want more than 0")
	}
}

func atLeast(at string, d, least time.Duration, fault report) {
	if d < least {
		fault(at, formatDuration(d), "want "+formatDuration(least)+" or more")
	}
}

func notNegative(at string, d time.Duration, fault report) {
	if d < 0 {
		fault(at, formatDuration(d), "want 0 or more")
	}
}

func between(at string, n, most int, fault report) {
	if n < 1 || n > most {
		fault(at, n, fmt.Sprintf("want 1 to %d", most))
	}
}
