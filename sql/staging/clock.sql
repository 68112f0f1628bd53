-- One row: when the first and the last event of the lake happened. Reports take the last one for "now": the
-- same lake, the same answer, whenever it is asked. Null on an empty lake, and where no event knows its time.
-- Key: last_us
with happened as (
    select time_us from event_calls
    union all
    select time_us from event_tools
    union all
    select time_us from event_executions
    union all
    select time_us from event_scores
    union all
    select time_us from event_groups
    union all
    select time_us from event_policy
    union all
    select time_us from event_cells
),

final as (
    select min(time_us) as first_us, max(time_us) as last_us
    from happened
    where time_us > 0
)

select * from final
