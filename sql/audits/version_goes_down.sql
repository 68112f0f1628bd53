-- One row a span of a call that an older policy version sampled than a span before it: an engine takes new
-- weights between tokens, never older ones.
-- Key: group_id, execution_id, call_id, span_start
with spans as (
    select group_id, execution_id, call_id, event_id, unnest(spans) as span
    from event_calls
    where len(spans) > 1
),

followed as (
    select
        group_id,
        execution_id,
        call_id,
        span.start as span_start,
        span.version as version,
        max(span.version) over (
            partition by event_id
            order by span.start, span."end"
            rows between unbounded preceding and 1 preceding
        ) as version_before
    from spans
),

final as (
    select distinct *
    from followed
    where version < version_before
)

select * from final
