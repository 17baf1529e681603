package s3

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// Documented error responses of services, and the error that each causes for a read of an item.
func TestMeaningOf(t *testing.T) {
	const head = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"
	for name, tt := range map[string]struct {
		status int
		body   string
		header string // name: value
		is     error
		class  retry.Class
	}{
		// https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html
		"AWS, no such key": {404,
			head + `<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Key>a</Key>` +
				`<RequestId>1</RequestId><HostId>2</HostId></Error>`, "", storage.ErrNotFound, retry.Transient},
		"AWS, no such bucket": {404,
			head + `<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message><BucketName>b` +
				`</BucketName></Error>`, "", nil, retry.ClassUnavailable},
		"AWS, access denied": {403,
			head + `<Error><Code>AccessDenied</Code><Message>Access Denied</Message><RequestId>1</RequestId></Error>`,
			"", nil, retry.Transient},
		"AWS, wrong key": {403,
			head + `<Error><Code>InvalidAccessKeyId</Code>` +
				`<Message>The AWS Access Key Id you provided does not exist in our records.</Message></Error>`,
			"", nil, retry.ClassUnavailable},
		"AWS, wrong signature": {403,
			head + `<Error><Code>SignatureDoesNotMatch</Code>` +
				`<Message>The request signature we calculated does not match the signature you provided.</Message></Error>`,
			"", nil, retry.ClassUnavailable},
		"AWS, clock skew": {403,
			head + `<Error><Code>RequestTimeTooSkewed</Code>` +
				`<Message>The difference between the request time and the current time is too large.</Message></Error>`,
			"", nil, retry.ClassUnavailable},
		"AWS, expired token": {400,
			head + `<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>`,
			"", nil, retry.ClassUnavailable},
		"AWS, other region": {301,
			head + `<Error><Code>PermanentRedirect</Code>` +
				`<Message>The bucket you are attempting to access must be addressed using the specified endpoint.` +
				`</Message><Endpoint>b.s3.eu-west-1.amazonaws.com</Endpoint></Error>`,
			"x-amz-bucket-region: eu-west-1", nil, retry.ClassUnavailable},
		"AWS, signed for another region": {400,
			head + `<Error><Code>AuthorizationHeaderMalformed</Code>` +
				`<Message>The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'` +
				`</Message><Region>eu-west-1</Region></Error>`, "", nil,
			retry.ClassUnavailable},
		"AWS, slow down": {503,
			head + `<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`,
			"", storage.ErrSlowDown, retry.Transient},
		"AWS, internal error": {500,
			head + `<Error><Code>InternalError</Code><Message>We encountered an internal error. Please try again.` +
				`</Message></Error>`, "", nil, retry.Transient},
		"AWS, archived": {403,
			head + `<Error><Code>InvalidObjectState</Code>` +
				`<Message>The operation is not valid for the object's storage class</Message><StorageClass>GLACIER` +
				`</StorageClass></Error>`, "", storage.ErrUnsupported, retry.ClassPermanent},
		"AWS, precondition": {412,
			head + `<Error><Code>PreconditionFailed</Code>` +
				`<Message>At least one of the pre-conditions you specified did not hold</Message><Condition>If-Match` +
				`</Condition></Error>`, "", storage.ErrChanged, retry.Transient},
		"AWS, conflict": {409,
			head + `<Error><Code>ConditionalRequestConflict</Code>` +
				`<Message>The conditional request cannot succeed due to a conflicting operation against this resource.` +
				`</Message></Error>`, "", nil, retry.Transient},
		"AWS, key too long": {400,
			head + `<Error><Code>KeyTooLongError</Code><Message>Your key is too long.</Message></Error>`,
			"", storage.ErrName, retry.ClassPermanent},
		// https://min.io/docs/minio: cmd/api-errors.go in its source
		"MinIO, object is a folder": {400,
			head + `<Error><Code>XMinioObjectExistsAsDirectory</Code>` +
				`<Message>Object name already exists as a directory.</Message></Error>`, "", storage.ErrName, retry.ClassPermanent},
		"MinIO, parent is an object": {400,
			head + `<Error><Code>XMinioParentIsObject</Code>` +
				`<Message>Object-prefix is already an object, please choose a different object-prefix name.</Message>` +
				`</Error>`, "", storage.ErrName,
			retry.ClassPermanent},
		"MinIO, full": {507,
			head + `<Error><Code>XMinioStorageFull</Code>` +
				`<Message>Storage backend has reached its minimum free drive threshold. Please delete a few objects to proceed.` +
				`</Message></Error>`, "", syscall.ENOSPC, retry.ClassUnavailable},
		"MinIO, quota": {400,
			head + `<Error><Code>XMinioAdminBucketQuotaExceeded</Code><Message>Bucket quota exceeded</Message></Error>`,
			"", syscall.ENOSPC, retry.ClassUnavailable},
		"MinIO, not up yet": {503,
			head + `<Error><Code>XMinioServerNotInitialized</Code>` +
				`<Message>Server not initialized yet, please try again.</Message></Error>`, "", nil, retry.ClassUnavailable},
		"MinIO, slow down": {503,
			head + `<Error><Code>SlowDownRead</Code>` +
				`<Message>Resource requested is unreadable, please reduce your request rate</Message></Error>`,
			"", storage.ErrSlowDown, retry.Transient},
		"MinIO, in a header of HEAD": {403, ``, "x-minio-error-code: InvalidAccessKeyId", nil, retry.ClassUnavailable},
		// https://docs.ceph.com/en/latest/radosgw/s3/: errors without a message
		"Ceph, no such key": {404,
			head + `<Error><Code>NoSuchKey</Code><Message></Message><BucketName>b</BucketName><RequestId>tx0` +
				`</RequestId><HostId>1-default-default</HostId></Error>`, "", storage.ErrNotFound, retry.Transient},
		"Ceph, quota": {403,
			head + `<Error><Code>QuotaExceeded</Code><BucketName>b</BucketName><RequestId>tx0</RequestId></Error>`,
			"", syscall.ENOSPC, retry.ClassUnavailable},
		"Ceph, busy": {503, head + `<Error><Code>SlowDown</Code><Message></Message><RequestId>tx0</RequestId></Error>`,
			"", storage.ErrSlowDown, retry.Transient},
		// https://docs.wasabi.com
		"Wasabi, no such key": {404,
			head + `<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message><Key>a</Key>` +
				`</Error>`, "", storage.ErrNotFound, retry.Transient},
		"Wasabi, suspended": {403,
			head + `<Error><Code>AccountProblem</Code>` +
				`<Message>There is a problem with your account that prevents the operation from completing successfully.` +
				`</Message></Error>`, "", nil, retry.ClassUnavailable},
		// https://www.backblaze.com/apidocs/s3-compatible-api
		"Backblaze, busy": {503, head + `<Error><Code>ServiceUnavailable</Code><Message>no tomes available</Message></Error>`,
			"", storage.ErrSlowDown, retry.Transient},
		"Backblaze, cap": {403,
			head + `<Error><Code>AccessDenied</Code><Message>Transaction cap exceeded.</Message></Error>`,
			"", nil, retry.Transient},
		"Backblaze, 429": {429, head + `<Error><Code>TooManyRequests</Code><Message>Too many requests</Message></Error>`, "",
			storage.ErrSlowDown, retry.Transient},
		// https://cloud.google.com/storage/docs/xml-api/reference-status
		"Google, no such key": {404,
			`<?xml version='1.0' encoding='UTF-8'?><Error><Code>NoSuchKey</Code>` +
				`<Message>The specified key does not exist.</Message><Details>No such object: b/a</Details></Error>`,
			"", storage.ErrNotFound, retry.Transient},
		"Google, too many": {429,
			`<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>` +
				`<Message>The object exceeded the rate limit for object mutation operations.</Message></Error>`,
			"", storage.ErrSlowDown, retry.Transient},
		"Google, billing": {403,
			`<?xml version='1.0' encoding='UTF-8'?><Error><Code>UserProjectAccountProblem</Code>` +
				`<Message>The project to be billed has an invalid or inactive account.</Message></Error>`,
			"", nil, retry.Transient},
		"Google, unauthorized": {401,
			`<?xml version='1.0' encoding='UTF-8'?><Error><Code>AuthenticationRequired</Code>` +
				`<Message>Authentication required.</Message></Error>`, "", nil, retry.ClassUnavailable},
		// https://github.com/versity/versitygw: s3err/s3err.go in its source
		"versitygw, wrong key": {404,
			head + `<Error><Code>XAdminUserNotFound</Code><Message>No user exists with the provided access key ID.` +
				`</Message></Error>`, "", nil, retry.ClassUnavailable},
		// proxies
		"404 with another code": {404, head + `<Error><Code>NoSuchThing</Code><Message>What is that?</Message></Error>`, "",
			nil, retry.Transient},
		"a proxy's page":      {502, `<html><body><h1>502 Bad Gateway</h1></body></html>`, "", nil, retry.Transient},
		"a gateway's timeout": {504, ``, "", nil, retry.Transient},
		"404 without a word":  {404, ``, "", storage.ErrNotFound, retry.Transient},
		"403 without a word":  {403, ``, "", nil, retry.Transient},
		"not done here": {501,
			head + `<Error><Code>NotImplemented</Code>` +
				`<Message>A header you provided implies functionality that is not implemented.</Message></Error>`,
			"", storage.ErrUnsupported, retry.ClassPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			s := answering(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/item") {
					w.Header().Set("ETag", `"e"`)
					w.Header().Set("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
					_, _ = io.WriteString(w, "{}") // the space exists
					return
				}
				if k, v, ok := strings.Cut(tt.header, ": "); ok {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.body)
			})
			_, _, err := s.Open(t.Context(), "s", "item", "")
			if tt.is != nil && !errors.Is(err, tt.is) || err == nil {
				t.Fatalf("Open: got %v, want %v", err, tt.is)
			}
			for _, fact := range []error{storage.ErrNotFound, storage.ErrNoSpace, storage.ErrChanged, storage.ErrSlowDown} {
				if errors.Is(err, fact) != (tt.is == fact) {
					t.Errorf("Open: %v says %q: %t", err, fact, errors.Is(err, fact))
				}
			}
			if got := retry.ClassOf(err); got != tt.class {
				t.Errorf("Open: %v is %v, want %v", err, got, tt.class)
			}
		})
	}
}

func answering(t *testing.T, h http.HandlerFunc) *Store {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	s, err := New(Config{ID: "1", Endpoint: srv.URL, Bucket: "bucket", PathStyle: true,
		Credentials: Credentials{AccessKey: "k", SecretKey: "s"}})
	must(t, err)
	return s
}
