-- Question: How much gets done over time?
-- One row a stretch of time, at most 50 of them, from the first event to the last: rates of calls, of tokens
-- sampled and sent, and of groups that got ready and were consumed. Calls whose end is unknown are in no row.
-- Then: a stretch without calls is a stall; waiting_for (with --as-of) and trainer_idle say whose.
-- Empty: the lake has no two events at different times, or no call that knows when it ended (imported calls).
-- Key: from_s
with width as (
    select
        first_us,
        last_us,
        1000000 * coalesce(
            list_filter(
                [1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 21600, 86400]::bigint[],
                lambda w: 50 * w * 1000000 >= last_us - first_us
            )[1],
            604800
        ) as width_us
    from clock
    where last_us > first_us and exists (from calls where finished_us > 0)
),

happened as (
    select finished_us as at_us, 1 as calls, n_output as sampled, shared_len + n_context as prompt,
        0 as ready, 0 as consumed
    from calls
    where finished_us > 0
    union all
    select ready_us, 0, 0, 0, 1, 0
    from groups
    where ready_us > 0
    union all
    select consumed_us, 0, 0, 0, 0, 1
    from groups
    where consumed_us > 0
),

counted as (
    select
        (least(greatest(h.at_us, w.first_us), w.last_us) - w.first_us) // w.width_us as bucket,
        sum(h.calls) as calls,
        sum(h.sampled) as sampled,
        sum(h.prompt) as prompt,
        sum(h.ready) as ready,
        sum(h.consumed) as consumed
    from happened as h
    cross join width as w
    group by bucket
),

stretches as (
    select
        unnest(range((last_us - first_us) // width_us + 1)) as bucket,
        width_us,
        last_us - first_us as whole_us
    from width
),

timed as (
    select
        s.bucket,
        s.bucket * s.width_us / 1e6 as from_s,
        least(s.width_us, s.whole_us - s.bucket * s.width_us) / 1e6 as seconds
    from stretches as s
),

final as (
    select
        t.from_s,
        t.seconds,
        coalesce(c.calls, 0)::bigint as calls,
        coalesce(c.calls, 0) / t.seconds as calls_per_s,
        coalesce(c.sampled, 0) / t.seconds as sampled_per_s,
        coalesce(c.prompt, 0) / t.seconds as prompt_per_s,
        3600 * coalesce(c.ready, 0) / t.seconds as groups_ready_per_h,
        3600 * coalesce(c.consumed, 0) / t.seconds as groups_consumed_per_h
    from timed as t
    left join counted as c on c.bucket = t.bucket
    where t.seconds > 0
)

select * from final
