package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/streams/schedule"
	"github.com/millrace/millrace/streams/sweep/filter"
)

var (
	idForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$`)
	prefixForm = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,99})?$`)
	laneForm   = regexp.MustCompile(`^[a-z0-9]{1,20}$`)
	bucketForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]$`) // old AWS buckets have such names
	quorumForm = regexp.MustCompile(`^(all|auto|[1-9][0-9]{0,2})$`)
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
	validateSweep(c.Sweep, fault)
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

func validateFixity(c *Config, fault report) {
	f := c.Fixity
	positive("fixity.period", f.Period, fault)
	notNegative("fixity.min_interval", f.MinInterval, fault)
	shortest := f.Period
	for i, p := range f.Periods {
		at := fmt.Sprintf("fixity.periods[%d]", i)
		positive(at+".period", p.Period, fault)
		shortest = min(shortest, p.Period)
		if err := filter.Check(p.Spaces); err != nil {
			fault(at+".spaces", p.Spaces, err.Error())
		}
	}
	if shortest > 0 && c.Sweep.Fixity.LongerThan(shortest) {
		fault("sweep.fixity", c.Sweep.Fixity, "is longer than the shortest fixity.period: copies would be checked too rarely")
	}
	if f.MinInterval > shortest && shortest > 0 {
		fault("fixity.min_interval", formatDuration(f.MinInterval),
			"is longer than fixity.period: every sweep would skip the copies that are due")
	}
	notNegative("fixity.settle", f.Settle, fault)
	increasing("fixity.recheck", f.Recheck, fault)
	positive("fixity.fresh_wait", f.FreshWait, fault)
	for i, b := range f.Budgets {
		at := fmt.Sprintf("fixity.budgets[%d]", i)
		if err := filter.CheckStores(b.Stores); err != nil {
			fault(at+".stores", b.Stores, err.Error())
		}
		if b.Items < 0 || b.Bytes < 0 || b.Items == 0 && b.Bytes == 0 && b.Windows == "" {
			fault(at, b.Stores, "want items or bytes, of 1 or more, or windows")
		}
		if _, err := schedule.ParseWindows(b.Windows); b.Windows != "" && err != nil {
			fault(at+".windows", b.Windows, "want "+err.Error())
		}
	}
}

func validateSweep(s Sweep, fault report) {
	for key, is := range map[string]schedule.Schedule{
		"sweep.fixity": s.Fixity, "sweep.reconcile": s.Reconcile, "sweep.duplication": s.Duplication,
		"sweep.groups": s.Groups, "sweep.stats": s.Stats,
	} {
		validateSchedule(key, is, fault)
	}
	between("sweep.max_backlog", s.MaxBacklog, 1_000_000_000, fault)
	between("sweep.workers", s.Workers, 256, fault)
	for key, f := range map[string]SpaceFilter{
		"fixity": s.Spaces.Fixity, "reconcile": s.Spaces.Reconcile, "duplication": s.Spaces.Duplication,
		"groups": s.Spaces.Groups,
	} {
		for list, texts := range map[string][]string{"include": f.Include, "exclude": f.Exclude} {
			for i, text := range texts {
				if err := filter.CheckItems(text); err != nil {
					fault(fmt.Sprintf("sweep.spaces.%s.%s[%d]", key, list, i), text, err.Error())
				}
			}
		}
	}
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

func validateLimits(at string, l Limits, fault report) {
	if l.Tasks < 0 {
		fault(at+".tasks", l.Tasks, "want 0, for no limit, or more")
	}
	if l.TasksPerSecond < 0 {
		fault(at+".tasks_per_second", l.TasksPerSecond, "want 0, for no limit, or more")
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
	if t.Percent < 0 || t.Percent > 100 {
		fault("trace.percent", t.Percent, "want 0 to 100")
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
			validateRequests(at+".requests", s.Requests, fault)
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

// validateLocation checks the settings of where a store keeps its items.
func validateLocation(at string, s Store, roots map[string]string, fault report) {
	if s.Driver != "s3" {
		validateRoot(at+".root", s.Root, roots, fault)
		for key, is := range map[string]bool{
			"endpoint": s.Endpoint != "", "bucket": s.Bucket != "", "bucket_prefix": s.BucketPrefix != "",
			"prefix": s.Prefix != "", "credentials": s.Credentials != Credentials{}, "region": s.Region != "",
			"path_style": s.PathStyle, "ca": s.CA != "", "proxy": s.Proxy != "", "encryption": s.Encryption != "",
			"kms_key": s.KMSKey != "", "storage_class": s.StorageClass != "", "requester_pays": s.RequesterPays,
			"restore": s.Restore,
		} {
			if is {
				fault(at+"."+key, nil, "is for driver s3")
			}
		}
		return
	}
	validateBucket(at, s, roots, fault)
	if s.Root != "" {
		fault(at+".root", s.Root, "is for driver file")
	}
	if hasPassword(s.Proxy) {
		fault(at+".proxy", nil, "has a password in clear text: leave it out, and set HTTPS_PROXY in the environment")
	}
	u, err := url.Parse(s.Endpoint)
	if err == nil && u.User != nil {
		fault(at+".endpoint", nil, "has a user or password in clear text: set credentials")
	} else if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		fault(at+".endpoint", s.Endpoint, "want https://host[:port], without a path: the bucket is a setting of its own")
	}
	if c := s.Credentials; c.FromEnvironment && !c.AccessKey.IsZero() {
		fault(at+".credentials.from_environment", true, "want keys or the environment's, not both")
	} else if c.AccessKey.IsZero() != c.SecretKey.IsZero() {
		fault(at+".credentials", nil, "want both access_key and secret_key, or none")
	}
	if s.KMSKey != "" && s.Encryption != "aws:kms" {
		fault(at+".kms_key", s.KMSKey, "is for encryption aws:kms")
	}
}

// validateBucket checks the buckets of a store, and that no two stores share keys.
func validateBucket(at string, s Store, roots map[string]string, fault report) {
	switch {
	case s.Bucket == "" && s.BucketPrefix == "":
		fault(at+".bucket", nil, "is missing: want a bucket for all spaces, or bucket_prefix for a bucket for each")
	case s.Bucket != "" && !bucketForm.MatchString(s.Bucket):
		fault(at+".bucket", s.Bucket,
			"want 3 to 63 letters, digits, dots, dashes and underscores, a letter or digit first and last")
	case !bucketPrefixForm.MatchString(s.BucketPrefix):
		fault(at+".bucket_prefix", s.BucketPrefix,
			"want at most 55 lower-case letters, digits, dots and dashes, a letter or digit first")
	case s.Bucket != "" && s.BucketPrefix != "":
		fault(at+".bucket_prefix", s.BucketPrefix, "is for stores without bucket")
	case s.Bucket == "" && s.Prefix != "":
		fault(at+".prefix", s.Prefix, "is for stores with bucket")
	}
	root := s.Place()
	for other, path := range roots {
		if overlaps(root, other) {
			key, value := at+".bucket", s.Bucket
			if s.Bucket == "" {
				key, value = at+".bucket_prefix", s.BucketPrefix
			}
			fault(key, value, "is the same location as "+path+": stores must not share keys")
			return
		}
	}
	roots[root] = at
}

// validateRoot checks a directory, and that no two stores share one: a copy would be its own second
// copy.
func validateRoot(at, root string, roots map[string]string, fault report) {
	switch {
	case root == "":
		fault(at, nil, "is missing: a store of driver file needs the directory that holds its spaces")
		return
	case !filepath.IsAbs(root):
		fault(at, root, "want an absolute path: a relative one depends on the working directory")
		return
	}
	root = filepath.Clean(root)
	for other, path := range roots {
		if overlaps(root, other) {
			fault(at, root, "is the same location as "+path+": stores must not share a directory")
			return
		}
	}
	roots[root] = at
}

// Place returns where a store keeps its items: the path of a directory, s3:ENDPOINT/BUCKET/PREFIX/ or, for a bucket for
// each space, s3:ENDPOINT/BUCKET_PREFIX, with which the places of these buckets begin.
func (s Store) Place() string {
	if s.Driver != "s3" {
		return filepath.Clean(s.Root)
	}
	place := "s3:" + strings.TrimSuffix(s.Endpoint, "/") + "/"
	if s.Bucket == "" {
		return place + s.BucketPrefix
	}
	place += s.Bucket + "/"
	if prefix := strings.Trim(s.Prefix, "/"); prefix != "" {
		place += prefix + "/"
	}
	return place
}

// overlaps reports whether one of two places is the other one or inside it.
func overlaps(a, b string) bool {
	if in := strings.HasPrefix(a, "s3:"); in || strings.HasPrefix(b, "s3:") {
		return in && strings.HasPrefix(b, "s3:") && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
	}
	return a == b || within(a, b) || within(b, a)
}

func within(path, parent string) bool {
	rel, err := filepath.Rel(parent, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, ".."+string(filepath.Separator))
}

func validateKafka(k *Kafka, fault report) {
	addresses("kafka.brokers", k.Brokers, fault)
	if !prefixForm.MatchString(k.TopicPrefix) {
		fault("kafka.topic_prefix", k.TopicPrefix,
			"want at most 100 letters, digits, dots, dashes and underscores, a letter or digit first")
	}
	between("kafka.partitions", k.Partitions, 10_000, fault)
	between("kafka.replication", k.Replication, 100, fault)
	between("kafka.min_insync", k.MinInSync, 100, fault)
	if k.MinInSync > k.Replication && k.Replication > 0 {
		fault("kafka.min_insync", k.MinInSync,
			fmt.Sprintf("is more than kafka.replication, which is %d: nothing could be written", k.Replication))
	}
	if k.Instance != "" && !idForm.MatchString(k.Instance) {
		fault("kafka.instance", k.Instance, "want letters, digits, dots, dashes and underscores, a letter or digit first")
	}
	validateSession(k, fault)
	validateTLS("kafka.tls", k.TLS, fault)
	switch s := k.SASL; {
	case s.Mechanism == "":
		if s.User != "" || !s.Password.IsZero() {
			fault("kafka.sasl.mechanism", nil, "is missing, but a user or password is set")
		}
	case s.User == "":
		fault("kafka.sasl.user", nil, "is missing")
	case s.Password.IsZero():
		fault("kafka.sasl.password", nil, "is missing")
	}
}

// validateSession checks the session timeout. The range has the brokers' default limits, and room
// for three heartbeats.
func validateSession(k *Kafka, fault report) {
	const at = "kafka.session_timeout"
	switch d := k.SessionTimeout; {
	case d == 0:
	case d < 6*time.Second || d > 30*time.Minute:
		fault(at, formatDuration(d), "want 6s to 30m: brokers refuse other values")
	case k.GroupProtocol == "consumer":
		fault(at, formatDuration(d), "has no effect with kafka.group_protocol consumer: "+
			"leave it out, and set group.consumer.session.timeout.ms of the brokers")
	}
}

func validateClickHouse(c *ClickHouse, fault report) {
	addresses("clickhouse.addresses", c.Addresses, fault)
	if !databaseForm.MatchString(c.Database) {
		fault("clickhouse.database", c.Database, "want letters, digits and underscores, no digit first")
	}
	if c.User == "" {
		fault("clickhouse.user", nil, "is missing")
	}
	if c.Reader.User == "" && !c.Reader.Password.IsZero() {
		fault("clickhouse.reader.password", nil, "is set, but clickhouse.reader.user is missing")
	}
	if c.Cluster != "" && !idForm.MatchString(c.Cluster) {
		fault("clickhouse.cluster", c.Cluster, "want letters, digits, dots, dashes and underscores, a letter or digit first")
	}
	if !quorumForm.MatchString(c.InsertQuorum) {
		fault("clickhouse.insert_quorum", c.InsertQuorum, "want all, auto or a number from 1")
	}
	validateTLS("clickhouse.tls", c.TLS, fault)
}

func validateTLS(at string, t TLS, fault report) {
	if !t.Enabled && t != (TLS{}) {
		fault(at+".enabled", false, "the other settings of "+at+" have no effect without it")
	}
	if (t.Cert == "") != (t.Key == "") {
		fault(at, nil, "cert and key go together")
	}
}

func validateLanes(lanes []Lane, fault report) {
	if len(lanes) == 0 {
		fault("delay.lanes", nil, "is empty: messages that wait need at least one lane")
	}
	seen := map[string]string{}
	for i, l := range lanes {
		at := fmt.Sprintf("delay.lanes[%d]", i)
		switch other, taken := seen[l.Name]; {
		case !laneForm.MatchString(l.Name):
			fault(at+".name", l.Name, "want 1 to 20 lower-case letters and digits")
		case taken:
			fault(at+".name", l.Name, "is taken by "+other)
		default:
			seen[l.Name] = at + ".name"
		}
		positive(at+".delay", l.Delay, fault)
		if i > 0 && l.Delay > 0 && l.Delay <= lanes[i-1].Delay {
			fault(at+".delay", formatDuration(l.Delay), "want more than the lane before: lanes are sorted from the shortest")
		}
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
