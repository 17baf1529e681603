package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/minio/minio-go/v7"

	"github.com/millrace/millrace/streams/retry"
	"github.com/millrace/millrace/streams/storage"
)

// A subject is what a request was about: one answer means different things.
type subject int

const (
	anItem subject = iota
	aBucket
	anUpload
)

// A verdict is what an answer that is no success means.
type meaning struct {
	is    error       // what callers branch on; nil: it is no fact about anything
	class retry.Class // what may be done about it
	hint  string      // what a person should know or do, where the answer does not say it
}

// away is the verdict of what concerns the whole store.
func unavailable(hint string) meaning { return meaning{nil, retry.ClassUnavailable, hint} }

// never is the verdict of what no retry will cure.
func permanent(is error) meaning { return meaning{is, retry.ClassPermanent, ""} }

// judge says what an HTTP status and S3's error code mean. Of what it does not know it says that it may pass.
func meaningOf(about subject, status int, code string) meaning {
	if status == 0 && code == "NotImplemented" && about == aBucket { // the client's own word for a listing that does not say how to go on
		return meaning{is: storage.ErrListing}
	}
	if v, ok := codeMeaning(about, code); ok {
		return v
	}
	switch status {
	case http.StatusNotFound: // with a code that is not known it may be anything that was not found: a user, a page
		if code == "" {
			return notFound(about)
		}
		return meaning{}
	case http.StatusPreconditionFailed:
		return meaning{is: storage.ErrChanged}
	case http.StatusRequestedRangeNotSatisfiable:
		return meaning{is: errRange}
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return permanent(storage.ErrUnsupported)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return meaning{is: storage.ErrSlowDown}
	case http.StatusUnauthorized, http.StatusProxyAuthRequired:
		return meaning{storage.ErrCredentials, retry.ClassUnavailable, "see the credentials, and those of the proxy"}
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return unavailable("the bucket is in another region, or at another endpoint")
	case http.StatusInsufficientStorage:
		return outOfSpace
	}
	if status == http.StatusForbidden { // who may not look has seen nothing
		return meaning{hint: "who asks may not do this: see the credentials, and what the bucket's policy allows them"}
	}
	return meaning{}
}

var outOfSpace = meaning{syscall.ENOSPC, retry.ClassUnavailable, "the store has no room left, or a quota is used up"}

// missing is what the absence of a subject means.
func notFound(about subject) meaning {
	switch about {
	case anItem:
		return meaning{is: storage.ErrNotFound}
	case aBucket:
		return meaning{is: storage.ErrNoSpace}
	}
	return meaning{} // an upload that somebody ended: it is begun again
}

// byCode judges what the code alone tells.
func codeMeaning(about subject, code string) (v meaning, known bool) {
	switch code {
	case "NoSuchKey", "NoSuchVersion":
		return notFound(about), true
	case "NoSuchBucket":
		return meaning{is: storage.ErrNoSpace}, true
	case "NoSuchUpload":
		return meaning{}, true
	case "PreconditionFailed":
		return meaning{is: storage.ErrChanged}, true
	case "ConditionalRequestConflict", "OperationAborted", "Conflict", "RequestTimeout", "InternalError", "IncompleteBody":
		return meaning{}, true
	case "BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch":
		return meaning{hint: "the bytes were damaged on their way"}, true
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "RequestLimitExceeded", "Throttling", "ThrottlingException",
		"ServiceUnavailable", "service_unavailable", "rateLimitExceeded", "BandwidthLimitExceeded", "Busy":
		return meaning{is: storage.ErrSlowDown}, true
	case "BucketAlreadyOwnedByYou", "BucketAlreadyExists":
		return meaning{is: storage.ErrExists}, true
	case "BucketNotEmpty":
		return meaning{is: storage.ErrNotEmpty}, true
	case "InvalidRange":
		return meaning{is: errRange}, true
	case "InvalidObjectState":
		return meaning{is: errArchived}, true
	case "InvalidArgument":
		return meaning{is: errInvalidArgument}, true
	}
	if v, known = limitMeaning(code); known {
		return v, true
	}
	return storeMeaning(code)
}

// byLimit judges what a service will never take.
func limitMeaning(code string) (v meaning, known bool) {
	switch code {
	case "KeyTooLongError", "InvalidObjectName", "XMinioInvalidObjectName", "XMinioInvalidResourceName", "ObjectParentIsFile", "XMinioParentIsObject",
		"ExistingObjectIsDirectory", "ExistingObjectIsFile", "InvalidURI", "InvalidBucketName", "XMinioObjectExistsAsDirectory", "DirectoryObjectContainsData":
		return permanent(storage.ErrName), true
	case "EntityTooLarge", "MetadataTooLarge", "RequestHeaderSectionTooLarge", "TooManyParts":
		return permanent(storage.ErrTooLarge), true
	case "NotImplemented", "MethodNotAllowed", "InvalidStorageClass", "XNotImplemented":
		return permanent(storage.ErrUnsupported), true
	}
	return v, false
}

// byStore judges what concerns the store as a whole.
func storeMeaning(code string) (v meaning, known bool) {
	switch code {
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidSecurity", "AuthFailure", "UnauthorizedAccess",
		"XMinioInvalidIAMCredentials", "XAdminUserNotFound", "TokenRefreshRequired", "InvalidClientTokenId":
		return meaning{storage.ErrCredentials, retry.ClassUnavailable, "they are wrong, or no longer valid"}, true
	case "RequestTimeTooSkewed":
		return unavailable("the clocks of this machine and of the service differ too much"), true
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException", "InvalidRegion":
		return unavailable("the bucket is in another region, or at another endpoint"), true
	case "AccountProblem", "AllAccessDisabled", "NotSignedUp", "InvalidPayer", "UserSuspended":
		return unavailable("the account is not served"), true
	case "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "StorageLimitExceeded", "cap_exceeded":
		return outOfSpace, true
	case "ServerNotInitialized", "XMinioServerNotInitialized":
		return unavailable("it is not up yet"), true
	case "KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException":
		return unavailable("the key that encrypts is not there"), true
	}
	return v, false
}

// clip makes what a service says fit into one line.
func shorten(message string) string {
	const most = 300
	message = strings.Join(strings.Fields(message), " ")
	if len(message) > most {
		return strings.ToValidUTF8(message[:most], "") + "..."
	}
	return message
}

// translate makes an error of the client one of ours: the only place that knows its kinds. what says what was to be done.
func translate(ctx context.Context, about subject, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, storage.Ended(ctx))
	}
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) || answer.StatusCode == 0 && answer.Code == "" {
		return transportError(what, err)
	}
	return errorOf(what, meaningOf(about, answer.StatusCode, answer.Code), answer)
}

// translate is that, in a store whose spaces are all in one bucket: a bucket that is not there is no space that is absent.
func (s *Store) translate(ctx context.Context, about subject, what string, err error) error {
	err = translate(ctx, about, what, err)
	if s.layout.bucket != "" && errors.Is(err, storage.ErrNoSpace) {
		return retry.Unavailable(fmt.Errorf("%s: bucket %q does not exist at %s: make it, or see bucket, endpoint and region",
			what, s.layout.bucket, s.cfg.Endpoint))
	}
	return err
}

// errorOf is the error of a verdict.
func errorOf(what string, v meaning, answer minio.ErrorResponse) error {
	said := fmt.Sprintf("%d %s: %s", answer.StatusCode, answer.Code, shorten(answer.Message))
	if answer.Region != "" && v.class == retry.ClassUnavailable {
		said += fmt.Sprintf(" (the bucket's region is %s)", answer.Region)
	}
	if v.hint != "" {
		said += ": " + v.hint
	}
	err := fmt.Errorf("%s: %s", what, said)
	if v.is != nil {
		err = fmt.Errorf("%s: %w (%s)", what, v.is, said)
	}
	err = &serviceError{err, answer.StatusCode}
	switch v.class {
	case retry.ClassPermanent:
		return retry.Permanent(err)
	case retry.ClassUnavailable:
		return retry.Unavailable(err)
	}
	return err
}

// refused is the error of an answer of S3's kind.
type serviceError struct {
	error
	status int
}

func (r *serviceError) Unwrap() error { return r.error }

// A refusal is what an error says of the request that would have applied a mutation.
type rejection int

// A proxy sends a PUT or a DELETE again if the connection to the service breaks or the answer takes too long. The caller sees
// the answer to the second request, and its reason may be the effect of the first.
const (
	maybeApplied       rejection = iota // it may have been carried out, or an equal one may be carried out at this moment
	rejectedOrRepeated                  // it was not carried out, and an equal one may have been before
	rejected                            // the service has not carried it out
)

// refusalOf returns which refusal err is.
func rejectionOf(err error) rejection {
	var r *serviceError
	switch {
	case !errors.As(err, &r), r.status < 400, r.status >= 500, r.status == http.StatusRequestTimeout:
		return maybeApplied
	case r.status == http.StatusConflict && !errors.Is(err, storage.ErrNotEmpty): // of two at once, or it exists
		return maybeApplied
	case r.status == http.StatusNotFound, r.status == http.StatusPreconditionFailed:
		return rejectedOrRepeated
	}
	return rejected
}

// applies marks the error of the request that would have applied a mutation, if that was refused.
func markNotApplied(err error) error {
	if rejectionOf(err) == rejected {
		return storage.NotApplied(err)
	}
	return err
}

// unclear says that an error does not tell whether what was asked for has been done, nor anything else.
func isAmbiguous(err error) bool {
	var r *serviceError
	return isTransient(err) && (!errors.As(err, &r) || r.status >= 500 || r.status == 0)
}

// unanswered is the error of a request to which nobody of S3's kind has answered.
func transportError(what string, err error) error {
	var (
		syntax   *xml.SyntaxError
		unknown  x509.UnknownAuthorityError
		host     x509.HostnameError
		invalid  x509.CertificateInvalidError
		noTLS    tls.RecordHeaderError
		op       *net.OpError
		resolver *net.DNSError
	)
	var hint string
	switch {
	case errors.Is(err, errNotS3):
		hint = "see the endpoint"
	case errors.Is(err, errUnsigned):
		hint = "see from_environment, and the role that the machine should have"
	case errors.As(err, &syntax):
		hint = "what answers at the endpoint does not speak S3"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid):
		hint = "its certificate is not trusted: see ca, and the endpoint's name"
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		hint = "it does not speak TLS: see the endpoint's scheme"
	case errors.As(err, &resolver), errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		hint = "nobody is there: see the endpoint, and the proxy"
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return retry.Unavailable(fmt.Errorf("%s: %w: %s", what, err, hint))
}

// errArgument says that something about a request is no value of its kind: a version's id, where one is asked for.
var errInvalidArgument = errors.New("it takes an argument for none")

// errRange is the error of a range that begins at the end of an object or past it.
var errRange = errors.New("range begins past the end of the object")

// isAbsent says that a request found nothing where it looked.
func isAbsent(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace)
}
