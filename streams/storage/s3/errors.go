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

// A subject is the kind of object that a request was about. The meaning of a 404 depends on it.
type subject int

const (
	anItem subject = iota
	aBucket
	anUpload
)

// A meaning classifies an error response.
type meaning struct {
	is    error       // sentinel for callers; nil: the response says nothing about the subject
	class retry.Class // whether to retry
	hint  string      // for the operator: cause or remedy, if the response does not contain it
}

// unavailable is the meaning of errors that concern the whole store.
func unavailable(hint string) meaning { return meaning{nil, retry.ClassUnavailable, hint} }

// permanent is the meaning of errors that a retry cannot fix.
func permanent(is error) meaning { return meaning{is, retry.ClassPermanent, ""} }

// meaningOf classifies an HTTP status and an S3 error code. Unknown ones are transient.
func meaningOf(about subject, status int, code string) meaning {
	if status == 0 && code == "NotImplemented" && about == aBucket { // minio-go: a truncated listing has no continuation
		return meaning{is: storage.ErrListing}
	}
	if v, ok := codeMeaning(about, code); ok {
		return v
	}
	switch status {
	case http.StatusNotFound: // an unknown code may be about something else: a user, a page
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
		return meaning{storage.ErrCredentials, retry.ClassUnavailable, "check the credentials, and those of the proxy"}
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return unavailable("the bucket is in another region, or at another endpoint")
	case http.StatusInsufficientStorage:
		return outOfSpace
	}
	if status == http.StatusForbidden { // says nothing about the subject
		return meaning{hint: "access denied: check the credentials and the bucket's policy"}
	}
	return meaning{}
}

var outOfSpace = meaning{syscall.ENOSPC, retry.ClassUnavailable, "the store is full, or a quota is exceeded"}

// notFound is the meaning of the absence of a subject.
func notFound(about subject) meaning {
	switch about {
	case anItem:
		return meaning{is: storage.ErrNotFound}
	case aBucket:
		return meaning{is: storage.ErrNoSpace}
	}
	return meaning{} // another process aborted the upload; the caller starts a new one
}

// codeMeaning classifies an error code.
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
		return meaning{hint: "the bytes were damaged in transit"}, true
	case "SlowDown", "SlowDownRead", "SlowDownWrite", "TooManyRequests", "RequestLimitExceeded", "Throttling",
		"ThrottlingException", "ServiceUnavailable", "service_unavailable", "rateLimitExceeded", "BandwidthLimitExceeded",
		"Busy":
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

// limitMeaning classifies the codes of requests that a service never accepts.
func limitMeaning(code string) (v meaning, known bool) {
	switch code {
	case "KeyTooLongError", "InvalidObjectName", "XMinioInvalidObjectName", "XMinioInvalidResourceName",
		"ObjectParentIsFile", "XMinioParentIsObject", "ExistingObjectIsDirectory", "ExistingObjectIsFile", "InvalidURI",
		"InvalidBucketName", "XMinioObjectExistsAsDirectory", "DirectoryObjectContainsData":
		return permanent(storage.ErrName), true
	case "EntityTooLarge", "MetadataTooLarge", "RequestHeaderSectionTooLarge", "TooManyParts":
		return permanent(storage.ErrTooLarge), true
	case "NotImplemented", "MethodNotAllowed", "InvalidStorageClass", "XNotImplemented":
		return permanent(storage.ErrUnsupported), true
	}
	return v, false
}

// storeMeaning classifies the codes that concern the whole store.
func storeMeaning(code string) (v meaning, known bool) {
	switch code {
	case "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "InvalidSecurity", "AuthFailure",
		"UnauthorizedAccess", "XMinioInvalidIAMCredentials", "XAdminUserNotFound", "TokenRefreshRequired",
		"InvalidClientTokenId":
		return meaning{storage.ErrCredentials, retry.ClassUnavailable, "they are wrong or have expired"}, true
	case "RequestTimeTooSkewed":
		return unavailable("the clocks of this machine and of the service differ too much"), true
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect", "IllegalLocationConstraintException",
		"InvalidRegion":
		return unavailable("the bucket is in another region, or at another endpoint"), true
	case "AccountProblem", "AllAccessDisabled", "NotSignedUp", "InvalidPayer", "UserSuspended":
		return unavailable("the account is disabled or suspended"), true
	case "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull", "InsufficientCapacity",
		"StorageLimitExceeded", "cap_exceeded":
		return outOfSpace, true
	case "ServerNotInitialized", "XMinioServerNotInitialized":
		return unavailable("the service is starting"), true
	case "KMS.DisabledException", "KMS.NotFoundException", "KMS.KMSInvalidStateException":
		return unavailable("the encryption key is not available"), true
	}
	return v, false
}

// shorten shortens a message of the service to one line.
func shorten(message string) string {
	const most = 300
	message = strings.Join(strings.Fields(message), " ")
	if len(message) > most {
		return strings.ToValidUTF8(message[:most], "") + "..."
	}
	return message
}

// translate converts an error of the S3 client. It is the only place that knows the client's error types. The
// operation is named by what.
func translate(ctx context.Context, about subject, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", what, storage.ContextErr(ctx))
	}
	var response minio.ErrorResponse
	if !errors.As(err, &response) || response.StatusCode == 0 && response.Code == "" {
		return transportError(what, err)
	}
	return errorOf(what, meaningOf(about, response.StatusCode, response.Code), response)
}

// translate is the function translate for this store. If all spaces are in one bucket, an absent bucket means that the
// store is unavailable, not that a space is absent.
func (s *Store) translate(ctx context.Context, about subject, what string, err error) error {
	err = translate(ctx, about, what, err)
	if s.layout.bucket != "" && errors.Is(err, storage.ErrNoSpace) {
		return retry.Unavailable(fmt.Errorf(
			"%s: bucket %q does not exist at %s: create it, or check bucket, endpoint and region",
			what, s.layout.bucket, s.cfg.Endpoint))
	}
	return err
}

// errorOf returns the error for an error response with this meaning.
func errorOf(what string, v meaning, response minio.ErrorResponse) error {
	text := fmt.Sprintf("%d %s: %s", response.StatusCode, response.Code, shorten(response.Message))
	if response.Region != "" && v.class == retry.ClassUnavailable {
		text += fmt.Sprintf(" (the bucket's region is %s)", response.Region)
	}
	if v.hint != "" {
		text += ": " + v.hint
	}
	err := fmt.Errorf("%s: %s", what, text)
	if v.is != nil {
		err = fmt.Errorf("%s: %w (%s)", what, v.is, text)
	}
	err = &serviceError{err, response.StatusCode}
	switch v.class {
	case retry.ClassPermanent:
		return retry.Permanent(err)
	case retry.ClassUnavailable:
		return retry.Unavailable(err)
	}
	return err
}

// A serviceError is the error of an S3 error response.
type serviceError struct {
	error
	status int
}

func (r *serviceError) Unwrap() error { return r.error }

// A rejection is the conclusion from the error of a mutating request: whether the service has applied it.
type rejection int

// A proxy may repeat a PUT or a DELETE if the connection to the service breaks or the response takes too long. The
// caller sees the response to the second request, which the first one may have caused.
const (
	maybeApplied       rejection = iota // it may have been applied, or a repetition of it may be applied just now
	rejectedOrRepeated                  // it was not applied, but an earlier repetition of it may have been
	rejected                            // it was not applied
)

// rejectionOf returns the rejection for an error.
func rejectionOf(err error) rejection {
	var r *serviceError
	switch {
	case !errors.As(err, &r), r.status < 400, r.status >= 500, r.status == http.StatusRequestTimeout:
		return maybeApplied
	case r.status == http.StatusConflict && !errors.Is(err, storage.ErrNotEmpty): // concurrent requests, or it exists
		return maybeApplied
	case r.status == http.StatusNotFound, r.status == http.StatusPreconditionFailed:
		return rejectedOrRepeated
	}
	return rejected
}

// markNotApplied marks the error of a mutating request with storage.NotApplied if the service rejected the request.
func markNotApplied(err error) error {
	if rejectionOf(err) == rejected {
		return storage.NotApplied(err)
	}
	return err
}

// isAmbiguous reports whether an error leaves open whether the request was carried out.
func isAmbiguous(err error) bool {
	var r *serviceError
	return isTransient(err) && (!errors.As(err, &r) || r.status >= 500 || r.status == 0)
}

// transportError returns the error of a request that got no S3 response.
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
		hint = "check the endpoint"
	case errors.Is(err, errUnsigned):
		hint = "check from_environment, and the role of the machine"
	case errors.As(err, &syntax):
		hint = "the endpoint does not speak S3"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid):
		hint = "its certificate is not trusted: check ca, and the endpoint's name"
	case errors.As(err, &noTLS), errors.Is(err, http.ErrSchemeMismatch):
		hint = "it does not speak TLS: check the endpoint's scheme"
	case errors.As(err, &resolver), errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect"):
		hint = "no connection: check the endpoint, and the proxy"
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return retry.Unavailable(fmt.Errorf("%s: %w: %s", what, err, hint))
}

// errInvalidArgument means that the service rejected a value of the request, for example a malformed version id.
var errInvalidArgument = errors.New("invalid argument")

// errRange is the error of a range that begins at the end of an object or past it.
var errRange = errors.New("range begins past the end of the object")

// isAbsent reports whether an error means that an item or a space is absent.
func isAbsent(err error) bool {
	return errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrNoSpace)
}
