package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/berth-cloud/berth/timescale"
)

// s3Bucket is a bucket of S3, or of a server that speaks its protocol.
type s3Bucket struct {
	client *s3.Client
	name   string
}

// answerLimit is how long a server may take to begin an answer, once it has all of a
// request.
var answerLimit = timescale.Limit(30 * time.Second)

// openS3 takes the options region, endpoint, profile and use_path_style.
// Credentials come from the environment, the profile, or the machine's role.
func openS3(ctx context.Context, u *url.URL) (*s3Bucket, error) {
	var load []func(*config.LoadOptions) error
	var set []func(*s3.Options)
	for name, values := range u.Query() {
		value := values[0]
		switch name {
		case "region":
			load = append(load, config.WithRegion(value))
		case "profile":
			load = append(load, config.WithSharedConfigProfile(value))
		case "endpoint":
			set = append(set, func(o *s3.Options) { o.BaseEndpoint = &value })
		case "use_path_style":
			yes, err := strconv.ParseBool(value)
			if err != nil {
				return nil, fmt.Errorf("use_path_style is %q: want true or false", value)
			}
			set = append(set, func(o *s3.Options) { o.UsePathStyle = yes })
		default:
			return nil, fmt.Errorf("there is no option %q: want region, endpoint, profile or use_path_style", name)
		}
	}
	// Servers other than Amazon's need not know the checksums that the SDK would
	// add; every object has one of ours.
	load = append(load,
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired))
	// The SDK waits for an answer for ever.
	load = append(load, config.WithHTTPClient(awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) {
		t.ResponseHeaderTimeout = answerLimit
	})))
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, err
	}
	return &s3Bucket{client: s3.NewFromConfig(cfg, set...), name: u.Host}, nil
}

func (b *s3Bucket) Put(ctx context.Context, key string, content []byte) error {
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, Body: bytes.NewReader(content), ContentType: aws.String("application/octet-stream"),
	})
	return err
}

// PutFrom implements Bucket. One request takes up to 5 GiB.
func (b *s3Bucket) PutFrom(ctx context.Context, key string, content io.ReadSeeker, size int64) error {
	if _, err := content.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, Body: content, ContentLength: &size, ContentType: aws.String("application/octet-stream"),
	})
	return err
}

// Create implements Bucket. A server that knows no conditional writes says so.
func (b *s3Bucket) Create(ctx context.Context, key string, content []byte) error {
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, Body: bytes.NewReader(content), ContentType: aws.String("application/octet-stream"),
		IfNoneMatch: aws.String("*"),
	})
	switch statusOf(err) {
	case http.StatusPreconditionFailed:
		return fmt.Errorf("%w: %w", ErrExists, err)
	case http.StatusNotImplemented:
		return b.Put(ctx, key, content)
	}
	return err
}

func (b *s3Bucket) Get(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	got, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return nil, 0, noKey(err)
	}
	return got.Body, aws.ToInt64(got.ContentLength), nil
}

func (b *s3Bucket) Stat(ctx context.Context, key string) (Object, error) {
	got, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return Object{}, noKey(err)
	}
	return Object{Key: key, Size: aws.ToInt64(got.ContentLength), Written: aws.ToTime(got.LastModified)}, nil
}

func (b *s3Bucket) Copy(ctx context.Context, from, to string) error {
	source := (&url.URL{Path: b.name + "/" + from}).EscapedPath()
	_, err := b.client.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &b.name, Key: &to, CopySource: &source})
	return noKey(err)
}

func (b *s3Bucket) Remove(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &key})
	return noKey(err)
}

func (b *s3Bucket) List(ctx context.Context, prefix, after string, visit func(Object) error) error {
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix, Delimiter: aws.String("/")}
	if after != "" {
		in.StartAfter = &after
	}
	return b.pages(ctx, in, visit)
}

// Walk implements Bucket.
func (b *s3Bucket) Walk(ctx context.Context, prefix string, visit func(Object) error) error {
	return b.pages(ctx, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix}, visit)
}

func (b *s3Bucket) pages(ctx context.Context, in *s3.ListObjectsV2Input, visit func(Object) error) error {
	pages := s3.NewListObjectsV2Paginator(b.client, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx) // the SDK tries a page again
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			if err := visit(Object{Key: aws.ToString(o.Key), Size: aws.ToInt64(o.Size), Written: aws.ToTime(o.LastModified)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// RemoveAll implements Bucket. Not every server knows how to delete many at once.
func (b *s3Bucket) RemoveAll(ctx context.Context, prefix string) error {
	var keys []string
	if err := b.Walk(ctx, prefix, func(o Object) error {
		keys = append(keys, o.Key)
		return nil
	}); err != nil {
		return err
	}
	return RemoveEach(ctx, b, keys)
}

// Sweep implements Bucket: S3 shows nothing that is half-written.
func (b *s3Bucket) Sweep(context.Context, string, time.Time) error { return nil }

// Passing implements Bucket. Of what a server refuses, only the lack of rights
// and of objects is sure to stay as it is.
func (b *s3Bucket) Passing(err error) bool {
	if errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists) {
		return false
	}
	switch statusOf(err) {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return false
	}
	return true
}

// Sync implements Bucket.
func (b *s3Bucket) Sync(...string) error { return nil }

// statusOf is the status of a server's refusal, or 0.
func statusOf(err error) int {
	var answer *awshttp.ResponseError
	if !errors.As(err, &answer) {
		return 0
	}
	return answer.HTTPStatusCode()
}

// noKey tells an object that is not there from a bucket that is not.
func noKey(err error) error {
	var api smithy.APIError
	if errors.As(err, &api) && (api.ErrorCode() == "NoSuchKey" || api.ErrorCode() == "NotFound") {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}
