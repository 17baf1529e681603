package config

import (
	"cmp"
	"net/url"
	"path/filepath"
	"strings"
)

// Limits bound the tasks of one process; zero is no limit. Each process applies its limits by
// itself, so with several processes divide them.
type Limits struct {
	// Tasks that run at the same time.
	Tasks int `key:"tasks"`
	// Tasks started per second.
	TasksPerSecond int `key:"tasks_per_second"`
	// Bytes per second of the tasks that are started, as far as their sizes are known in advance.
	BytesPerSecond Size `key:"bytes_per_second"`
}

// Store is one storage provider of an account.
type Store struct {
	// The store's name, unique in the account: letters, digits, dot, dash and underscore. It cannot be
	// changed later.
	ID string `key:"id"`
	// The kind of store.
	Driver string `key:"driver" oneof:"file|s3"`
	// Driver file: the directory that holds the spaces, an absolute path.
	Root string `key:"root"`
	// Driver file: how items are stored in root. millrace: the layout of millrace. plain: an ordinary
	// directory tree, such as an existing archive. The path of a file is its item id; the tree is read
	// only.
	Layout string `key:"layout" oneof:"millrace|plain"`
	// Layout plain: the name of the single space that contains all of root. Default: each directory in
	// root is a space.
	Space string `key:"space"`
	// Layout plain: the path, relative to root, of a file or directory that proves that root is
	// mounted; a plain tree has no marker file. Choose one that an empty mount point or another disk
	// does not have, such as bagit.txt.
	Expect string `key:"expect"`
	// Layout plain: the SHA-256 of the file expect, in hex. The file may have up to 1 MiB. Default:
	// any content.
	ExpectSHA256 string `key:"expect_sha256"`
	// Driver s3: the URL of the service, https://host[:port]; http for a service on the same machine.
	Endpoint string `key:"endpoint"`
	// Driver s3: the region of the bucket. Default: us-east-1.
	Region string `key:"region"`
	// Driver s3: the bucket that holds all spaces, each below a prefix with the space's name.
	Bucket string `key:"bucket"`
	// Driver s3, with bucket: a key prefix before the names of spaces, such as a folder name.
	Prefix string `key:"prefix"`
	// Driver s3, without bucket: each space is a bucket, named by this prefix and the space's name.
	BucketPrefix string `key:"bucket_prefix"`
	// Driver s3: path-style requests: the bucket is in the path, not in the host name. Most services
	// other than AWS need it.
	PathStyle bool `key:"path_style"`
	// Driver s3: the credentials.
	Credentials Credentials `key:"credentials"`
	// Driver s3: a PEM file with certificate authorities to trust in addition to the system's.
	CA string `key:"ca"`
	// Driver s3: the URL of an HTTP proxy. Default: the proxy of the environment.
	Proxy string `key:"proxy"`
	// Driver s3: the server-side encryption of objects that are written. Default: the bucket's.
	Encryption string `key:"encryption" oneof:"AES256|aws:kms"`
	// Driver s3, with encryption aws:kms: the id of the key. Default: the bucket's key.
	KMSKey string `key:"kms_key"`
	// Driver s3: the storage class of objects that are written. Default: the service's.
	StorageClass string `key:"storage_class"`
	// Driver s3: requester pays: reads are charged to this account.
	RequesterPays bool `key:"requester_pays"`
	// Driver s3: restore archived objects before they are read, which costs. If false, reading them
	// fails.
	Restore bool `key:"restore"`
	// Whether clients write to this store. At most one store of an account is primary.
	Primary bool `key:"primary"`
	// Whether checks read the bytes of copies. never: for archives where reads cost too much. sampled:
	// rounds read sample_percent of the copies in each fixity.period, each copy in its turn; checks
	// for any other reason, such as on demand, always read.
	Read string `key:"read" oneof:"always|sampled|never"`
	// With read: sampled, the percentage of copies that is read in each fixity.period. Default: 5.
	SamplePercent int `key:"sample_percent"`
	// Whether damaged copies are repaired at once (auto), after approval (approve), or not at all
	// (off). Default: off for layout plain, approve for the primary store, auto for the others.
	Repair string `key:"repair" oneof:"auto|approve|off"`
	// Whether programs other than millrace may change this store. Default: expected with watch, else
	// refused.
	ExternalWrites string `key:"external_writes" oneof:"refused|expected"`
	// With external_writes: expected, whether an item that another program has replaced without an
	// event is put on record and copied at once, up to the brake on rewrites (auto), or after approval
	// (approve). Default: auto with watch, else approve.
	Corrections string `key:"corrections" oneof:"approve|auto"`
	// Driver file: whether the ingester watches the directory with inotify and reports changes at
	// once. When it starts, it asks for a round of the sweep reconcile, which finds what has changed
	// meanwhile (docs/ingest.md).
	Watch bool `key:"watch"`
	// Limits of this store's tasks, in one process.
	Limits Limits `key:"limits"`
	// Limits of the requests to this store, of all tasks of one process together.
	Requests Requests `key:"requests"`
}

// Requests bound the requests of one process to one store; zero is no limit. When a store asks for
// fewer requests, the rate is halved and then raised again step by step, with or without a limit.
type Requests struct {
	// Concurrent requests of each kind: reads of items, writes of items, and others.
	AtOnce int `key:"at_once"`
	// Requests started per second.
	PerSecond int `key:"per_second"`
	// Bytes read and written per second.
	BytesPerSecond Size `key:"bytes_per_second"`
}

// Credentials are keys, or the credentials of the machine. Without any, requests are not signed.
type Credentials struct {
	// The access key id.
	AccessKey Secret `key:"access_key"`
	// The secret access key.
	SecretKey Secret `key:"secret_key"`
	// The session token of temporary keys.
	SessionToken Secret `key:"session_token"`
	// Whether credentials come from the sources of the AWS tools: variables, ~/.aws, the role of the
	// machine or pod.
	FromEnvironment bool `key:"from_environment"`
}

// withDefaults sets the fields of a store that are empty to their defaults.
func (s Store) withDefaults() Store {
	if s.Driver == "" {
		s.Driver = "file"
	}
	if s.Layout == "" && s.Driver == "file" {
		s.Layout = "millrace"
	}
	if s.Read == "" {
		s.Read = "always"
	}
	if s.Read == "sampled" && s.SamplePercent == 0 {
		s.SamplePercent = 5
	}
	if s.Repair == "" {
		s.Repair = "auto"
		switch {
		case s.Layout == layoutPlain:
			s.Repair = "off"
		case s.Primary:
			s.Repair = "approve"
		}
	}
	external, corrections := "refused", "approve"
	if s.Watch { // it reports what other programs write
		external, corrections = "expected", "auto"
	}
	s.ExternalWrites, s.Corrections = cmp.Or(s.ExternalWrites, external), cmp.Or(s.Corrections, corrections)
	return s
}

func validateLimits(at string, l Limits, fault report) {
	limit(at+".tasks", l.Tasks, fault)
	limit(at+".tasks_per_second", l.TasksPerSecond, fault)
}

// limit checks a limit, of which 0 is none.
func limit(at string, n int, fault report) {
	if n < 0 {
		fault(at, n, "want 0, for no limit, or more")
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
