package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
)

// s3Bucket is a bucket of S3, or of a server that speaks its protocol.
type s3Bucket struct {
	client *s3.Client
	name   string
}

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
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, err
	}
	return &s3Bucket{client: s3.NewFromConfig(cfg, set...), name: u.Host}, nil
}

func (b *s3Bucket) put(ctx context.Context, key string, content []byte) error {
	_, err := b.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &b.name, Key: &key, Body: bytes.NewReader(content), ContentType: aws.String("application/octet-stream"),
	})
	return err
}

func (b *s3Bucket) get(ctx context.Context, key string) (io.ReadCloser, int64, error) {
	got, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return nil, 0, noKey(err)
	}
	return got.Body, aws.ToInt64(got.ContentLength), nil
}

func (b *s3Bucket) stat(ctx context.Context, key string) (object, error) {
	got, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return object{}, noKey(err)
	}
	return object{key: key, size: aws.ToInt64(got.ContentLength), written: aws.ToTime(got.LastModified)}, nil
}

func (b *s3Bucket) copy(ctx context.Context, from, to string) error {
	source := (&url.URL{Path: b.name + "/" + from}).EscapedPath()
	_, err := b.client.CopyObject(ctx, &s3.CopyObjectInput{Bucket: &b.name, Key: &to, CopySource: &source})
	return noKey(err)
}

func (b *s3Bucket) remove(ctx context.Context, key string) error {
	_, err := b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &b.name, Key: &key})
	return noKey(err)
}

func (b *s3Bucket) list(ctx context.Context, prefix, after string, visit func(object) error) error {
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix}
	if after != "" {
		in.StartAfter = &after
	}
	pages := s3.NewListObjectsV2Paginator(b.client, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx) // the SDK tries a page again
		if err != nil {
			return err
		}
		for _, o := range page.Contents {
			if err := visit(object{key: aws.ToString(o.Key), size: aws.ToInt64(o.Size), written: aws.ToTime(o.LastModified)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// passing implements bucket. Of what a server refuses, only the lack of rights
// and of objects is sure to stay as it is.
func (b *s3Bucket) passing(err error) bool {
	if isNotFound(err) {
		return false
	}
	var answer *awshttp.ResponseError
	if !errors.As(err, &answer) {
		return true
	}
	switch answer.HTTPStatusCode() {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return false
	}
	return true
}

// noKey tells an object that is not there from a bucket that is not.
func noKey(err error) error {
	var api smithy.APIError
	if errors.As(err, &api) && (api.ErrorCode() == "NoSuchKey" || api.ErrorCode() == "NotFound") {
		return fmt.Errorf("%w: %w", errNoObject, err)
	}
	return err
}
