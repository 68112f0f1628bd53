-- Question: How many replies did not reach their harness, and were they asked for again?
-- One row a role: calls, of these undelivered (never a target), calls that repeat such a one (`retries`), and
-- undelivered ones that nobody repeated. `share` is of undelivered calls.
-- Then: undelivered replies are client time-outs or broken connections: raise the harness's time-out; what
-- nobody repeated ended its execution, or the harness went on without it.
-- Empty: the lake has no calls.
-- Key: role
with repeated as (
    select distinct execution_id, retry_of as call_id
    from calls
    where retry_of is not null
),

final as (
    select
        c.role,
        count(*) as calls,
        count(*) filter (not c.delivered) as undelivered,
        count(*) filter (not c.delivered) / count(*) as share,
        coalesce(sum(c.n_output) filter (not c.delivered), 0)::bigint as undelivered_tokens,
        count(c.retry_of) as retries,
        count(*) filter (not c.delivered and r.call_id is null) as never_repeated,
        count(distinct c.execution_id) filter (not c.delivered) as executions
    from calls as c
    left join repeated as r on r.execution_id = c.execution_id and r.call_id = c.call_id
    group by c.role
)

select * from final
